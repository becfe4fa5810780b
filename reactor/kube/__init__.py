"""The Kubernetes API, as far as a node agent needs it. Knows nothing of cgroups and decides nothing.

credentials   a kubeconfig, or what a pod is given, to an address, TLS and a token that is kept fresh
client        one request: retried where that helps, refused with what the operator can mend
watch         list and watch of one collection, in bounded memory
pods          the pods of this node by uid, which outlive the API server
documents     what is written: pod statuses, events, node conditions, taints
"""
