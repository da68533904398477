"""All-reduce of small messages through host memory, for GPUs without peer access (docs/collectives.md).

protocol.h, segment.h: what every thread reads and writes, for GPU and CPU alike; host_allreduce.cu: the kernels.
binding: the library; segment, link: the memory and how only the group's processes get it; communicator: the class to
use; plan, decision: pure choices; trial, startup: value check, timing and choice at a server's start.
"""
