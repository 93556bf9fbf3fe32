"""What the benches compare with, each as its own documentation advises, in its own process."""
