"""What ``loadtest.bench_batching`` measures, in virtual time and on a device that really sleeps."""
