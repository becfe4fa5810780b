"""The Kubernetes API, as far as a node agent needs it. Knows nothing of cgroups and decides nothing.

credentials   a kubeconfig, or what a pod is given, to TLS and a token; their files are read again
client        one request, retried where that helps; errors: what a refusal comes to
watch         list and watch of one collection, in bounded memory
kubelet       the node's pods from the kubelet itself
pods          the pods of this node by uid, which outlive their source
node          the node's conditions and taints, and the patches that change them
documents     what else is written: pod statuses and events
"""
