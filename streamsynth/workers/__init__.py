"""Worker processes: wire format, shared memory, launchers, supervisor and the step loop."""
