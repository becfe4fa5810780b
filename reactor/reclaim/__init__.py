"""What the node gives back before a pod is evicted: commands, containers, images, page cache."""
