"""The vLLM plugin that makes DeepSeek-V4 run on SM86 GPUs. Nothing above this package imports it."""
