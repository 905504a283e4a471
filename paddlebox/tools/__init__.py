"""Product tooling. Each tool knows the core; the core knows none of them."""
