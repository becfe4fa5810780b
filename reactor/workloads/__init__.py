"""The pods of a plain node: child cgroups of the configured parents, with manifests and attributes."""
