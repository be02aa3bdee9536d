"""Parts of bench.distributed: processes and what each measures."""
