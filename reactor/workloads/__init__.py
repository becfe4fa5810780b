"""The pods of a node: child cgroups of the parents, with manifests and attributes, or Kubernetes' specs."""
