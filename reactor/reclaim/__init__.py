"""What is reclaimed before a pod is evicted: commands, containers, images, page cache, pods' memory."""
