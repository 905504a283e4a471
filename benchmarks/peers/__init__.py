"""What benchmarks/ssd_tier.py compares with: other stores on the same work, and the raw disk."""
