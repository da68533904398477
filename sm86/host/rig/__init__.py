"""Where the facts of a rig come from: NVML, sysfs, procfs, Docker, the kernel's log. Each source is asked in bounded
time, and each may be missing, broken or silent; what it does not tell is None, and `Rig.missed` says why."""
