"""The programs that the Dockerfile's steps run: packages put together, bytecode, the build record, the SBOM."""
