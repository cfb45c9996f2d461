"""Container engines, Docker and Podman: their images, and the worlds that are containers."""
