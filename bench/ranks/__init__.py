"""Parts of bench.distributed: the processes, and the probes that they run."""
