"""The peers and the parts of the benchmarks that run in processes of their own."""
