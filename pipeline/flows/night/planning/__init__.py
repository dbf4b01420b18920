"""Before a night: estimate its cost, and check whether it can run."""
