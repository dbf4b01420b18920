"""Compare encoders on evaluation tasks, and measure the geometry of their vectors."""
