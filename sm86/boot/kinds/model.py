"""The checkpoint."""

from __future__ import annotations

from sm86.boot.kinds.case import Kind

KINDS: tuple[Kind, ...] = (
    Kind(
        "model missing",
        "the engine finds no model where it was told to look: {found}",
        "see that SM86_MODELS_DIR holds the checkpoint's folder with config.json and all its shards",
        (
            r"Invalid repository ID or local directory specified",
            r"Cannot find any model weights with",
            r"Repo id must (?:be in the form|use alphanumeric)",
            r"is not a local folder and is not a valid model identifier",
            r"Can't load (?:the )?(?:configuration|config|tokenizer)",
            r"No such file or directory: '[^']*(?:config\.json|\.safetensors|tokenizer[^']*)'",
            r"does not appear to have a file named",
            r"[Oo]ffline mode is enabled",
        ),
    ),
    Kind(
        "model damaged",
        "the checkpoint's files are damaged or not complete: {found}",
        "compare their sizes and checksums with the repository's, and download those that differ again",
        (
            r"SafetensorError",
            r"incomplete metadata, file not fully covered",
            r"[Hh]eader ?(?:too large|TooLarge|too small|TooSmall)",
            r"[Ii]nvalid ?[Hh]eader ?[Dd]eserialization",
            r"Following weights were not initialized from checkpoint",
            r"JSONDecodeError",
        ),
    ),
    Kind(
        "wrong model",
        "the checkpoint is not the one the envelope is made for: {found}",
        "use the envelope's checkpoint (invoke envelopes --json names its repository), or its own envelope",
        (
            r"Model architectures .* (?:are not supported|failed to be inspected)",
            r"Quantization method specified in the model config",
            r"Unknown quantization method",
            r"User-specified max_model_len .* is greater than the derived max_model_len",
            r"size of tensor .* must match the size",
            r"There is no module or parameter named",
        ),
    ),
)
