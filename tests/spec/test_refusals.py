"""Every way a spec can be wrong ends in one line that names the place, and one that mends it."""

import pytest

from sm86.errors import CouldNotRun
from sm86.spec import load_envelope
from sm86.spec.load import ENVELOPES_DIR
from sm86.spec.validate import avoided

GOOD = (ENVELOPES_DIR / "sm86-80k-4seq.toml").read_text()


def refused(tmp_path, text, data: bytes | None = None) -> CouldNotRun:
    path = tmp_path / "mine.toml"
    path.write_bytes(data if data is not None else text.encode())
    with pytest.raises(CouldNotRun) as caught:
        load_envelope(str(path))
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.what and caught.value.mend
    assert "mine.toml" in caught.value.what
    return caught.value


def test_the_unchanged_file_is_good(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert load_envelope(str(path)).name == "sm86-80k-4seq"


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("context = 81920", "context = 0", "context is 0"),
        ("context = 81920", "context = 2097152", "out of range"),
        ("context = 81920", 'context = "80K"', "not a whole number"),
        ("context = 81920", "context = 8192.5", "not a whole number"),
        ("context = 81920", "context = true", "not a whole number"),
        ("context = 81920", "", "context is missing"),
        ("context = 81920", "contxt = 81920\ncontext = 81920", "contxt is not a key"),
        ("sequences = 4", "sequences = 4\nmax_num_batched_tokens = 0", "out of range"),
        ("sequences = 4", 'sequences = 4\nkv_cache_dtype = "fp8"', "kv_cache_dtype"),
        ("sequences = 4", "sequences = 4\nblock_size = 64", "block_size"),
        ("sequences = 4", "sequences = 4\nhybrid_kv_cache = false", "hybrid"),
        ("sequences = 4", "sequences = 4\ngpu_memory_utilization = 1.5", "out of range"),
        ("sequences = 4", 'sequences = 4\nspeculative_config = "{}"', "drafting"),
        ("sequences = 4", 'sequences = 4\nextra_args = ["--disable-hybrid-kv-cache-manager"]', "hybrid"),
        ("sequences = 4", 'sequences = 4\nextra_args = ["-dcp", "2"]', "decode context"),
        ("num_gpu_blocks_override = 1632", "num_gpu_blocks_override = 1600", "need 1605"),
        ("num_gpu_blocks_override = 1632", "# none", "num_gpu_blocks_override is missing"),
        ("capture_sizes = [1, 4]", "capture_sizes = [1, 2]", "largest capture size is 2"),
        ("capture_sizes = [1, 4]", "capture_sizes = [4, 1]", "not ascending"),
        ("capture_sizes = [1, 4]", "capture_sizes = []", "empty"),
        ("capture_sizes = [1, 4]", 'capture_sizes = [1, "4"]', "capture_sizes"),
        ("per_sequence_tok_s = [29.2, 30.3, 30.3, 30.2]", "per_sequence_tok_s = [29.2]", "one number per sequence"),
        ("aggregate_tok_s = 120.1", 'aggregate_tok_s = "fast"', "not a number"),
        ('name = "sm86-80k-4seq"', 'name = "My Server"', "service name"),
        ('family = "dsv4-w4a16"', 'family = "dsv5"', "family 'dsv5'"),
        ('status = "published"', 'status = "great"', "status is 'great'"),
        ("[graphs]", '[environment]\nNCCL_ALGO = ""\n[graphs]', "NCCL_ALGO"),
        ("[graphs]", "[environment]\nNCCL_ALGO = 3\n[graphs]", "NCCL_ALGO"),
        ("[graphs]", '[environment]\nHF_TOKEN = "hf_x"\n[graphs]', "secret"),
        ("[graphs]", '[model]\nfolder = "../other"\n[graphs]', "folder"),
        ("[graphs]", "[graph]", "graph"),
        ("[graphs]", "[graphs", "not valid TOML"),
        ('title = "', 'title = "two\nlines', "not valid TOML"),
    ],
)
def test_one_line_names_the_fault(tmp_path, old, new, says):
    assert old in GOOD
    assert says in refused(tmp_path, GOOD.replace(old, new, 1)).what


def test_not_text_at_all(tmp_path):
    assert "UTF-8" in refused(tmp_path, "", data=b"\xff\xfe\x00name").mend


def test_a_byte_order_mark_is_no_fault(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_envelope(str(path)).serve.context == 81_920


def test_missing_file():
    with pytest.raises(CouldNotRun, match="no such file"):
        load_envelope("nowhere/at-all.toml")


@pytest.mark.parametrize("name, near", [("sm86-262", "sm86-262k"), ("80k-4seq", "sm86-80k-4seq"), ("cpu", "cpu-smoke")])
def test_unknown_envelope_suggests_the_nearest(name, near):
    with pytest.raises(CouldNotRun) as caught:
        load_envelope(name)
    assert f"did you mean {near}?" in caught.value.mend


@pytest.mark.parametrize("name", ["", "../pins", "/etc/passwd", "sm86-262k\n", "x" * 10_000])
def test_names_that_are_no_names(name):
    with pytest.raises(CouldNotRun):
        load_envelope(name)


@pytest.mark.parametrize(
    "argument",
    [
        "--decode-context-parallel-size",
        "--decode-context-parallel-size=2",
        "--decode_context_parallel_size=2",
        "--decode-context",
        "-dcp",
        "-dcp=2",
        "--disable-hybrid-kv-cache-manager",
        "--speculative-config",
        "--speculative-config.method",
        "--spec",
        "-sc",
        "--config",
    ],
)
def test_the_avoid_list_reads_flags_as_vllm_does(argument):
    assert avoided(argument)


@pytest.mark.parametrize(
    "argument", ["--dtype", "--max-model-len", "serve", "8", "--no-disable-hybrid-kv-cache-manager"]
)
def test_what_is_not_on_the_avoid_list(argument):
    assert avoided(argument) is None
