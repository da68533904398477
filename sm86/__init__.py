"""DeepSeek-V4-Flash on rigs of SM86 GPUs: specs in, server out, evidence beside it."""

__version__ = "0.1.0"
