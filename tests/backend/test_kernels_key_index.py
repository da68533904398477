"""Local key numbers to cache entries."""

from __future__ import annotations

import pytest
import torch

from sm86.backend.kernels import key_index


@pytest.mark.parametrize(("entries", "width"), [(64, 512), (2, 128), (64, 700)])
@pytest.mark.parametrize("first", [0, 3])
def test_kernel_against_reference(entries: int, width: int, first: int, device: str) -> None:
    local = torch.randint(0, 5 * entries, (6, width + 5), dtype=torch.int32, device=device)[:, :width]
    local[torch.rand(6, width, device=device) < 0.2] = -1
    requests = torch.randint(0, 3, (10,), dtype=torch.int32, device=device)
    valid = torch.tensor([True, False] * 5, device=device)
    table = torch.randint(0, 1000, (3, 7), dtype=torch.int32, device=device)
    want, want_length = key_index.reference(local, requests, valid, table, entries, first)
    got, length = key_index.launch(local, requests, valid, table, entries, first)
    assert torch.equal(got, want) and torch.equal(length, want_length)
    assert int(length.max()) > 0 and 0 in length.tolist()
