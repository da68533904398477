"""The NVIDIA driver and the GPUs."""

from __future__ import annotations

from sm86.boot.kinds.case import Kind

KINDS: tuple[Kind, ...] = (
    Kind(
        "driver and libraries differ",
        "the NVIDIA driver in the kernel and its libraries are of different versions",
        "reboot the machine (a driver update was installed), or reload the driver's modules",
        (r"[Dd]river/library version mismatch", r"NVMLError_LibRmVersionMismatch"),
    ),
    Kind(
        "driver not usable (803)",
        "CUDA refuses the combination of display driver and CUDA libraries (error 803)",
        "hand the GPUs over as devices, not by runtime nvidia; keep any other libcuda.so out of the library path",
        (r"Error 803", r"unsupported display driver ?/ ?cuda driver combination", r"cudaErrorSystemDriverMismatch"),
    ),
    Kind(
        "forward compatibility (804)",
        "CUDA's forward compatibility was tried on a GPU that does not have it (error 804)",
        "take the cuda compat folder out of the library path; GeForce GPUs need driver 580 or newer itself",
        (r"Error 804", r"forward compatibility was attempted on non supported HW"),
    ),
    Kind(
        "driver too old",
        "the NVIDIA driver is too old for the CUDA in the image",
        "install driver 580 or newer (580.126.09 is validated), then reboot",
        (
            r"NVIDIA driver on your system is too old",
            r"CUDA driver version is insufficient for CUDA runtime version",
            r"unsatisfied condition: cuda\s*>=",
        ),
    ),
    Kind(
        "GPUs lost by the container",
        "NVML fails inside the container: Unknown Error",
        "start it again (invoke down, invoke up); it comes from a systemd daemon-reload: use cgroupfs, or CDI devices",
        (r"Failed to initialize NVML: Unknown Error", r"NVMLError_Unknown", r"NVMLError: Unknown Error"),
    ),
    Kind(
        "GPU off the bus",
        "a GPU has failed or dropped off its bus",
        "see dmesg for Xid lines, then power-cycle the machine; check risers and the power supply",
        (
            r"GPU is lost",
            r"GPU has fallen off the bus",
            r"NVRM: Xid",
            r"uncorrectable (?:ECC|NVLink) error",
            r"CUDA error: (?:unspecified launch failure|device not ready|unknown error)",
        ),
    ),
    Kind(
        "no GPU",
        "the engine sees no usable GPU",
        "run nvidia-smi on this machine and in a container (docker run --gpus all); see SM86_GPUS",
        (
            r"No CUDA GPUs are available",
            r"Found no NVIDIA driver on your system",
            r"no CUDA-capable device is detected",
            r"Failed to infer device type",
            r"NVMLError_(?:LibraryNotFound|DriverNotLoaded|NotFound)",
            r"CUDA error: invalid device ordinal",
            r"World size \(\d+\) is larger than the number of available GPUs",
            r"error: no GPU",
        ),
    ),
    Kind(
        "kernels of another GPU",
        "the image has no kernel for this GPU's architecture",
        "build the image on this source for SM 8.6: invoke build",
        (r"no kernel image is available for execution on the device", r"sm_\d+ is not compatible with the current"),
    ),
)
