"""The Kubernetes API, as far as a node agent needs it. Knows nothing of cgroups and decides nothing.

kubeconfig    a kubeconfig, or what a pod is given, to the way in
credentials   TLS and a token that stay good: what their files hold is read again
client        one request, retried where that helps; answers, errors: what a refusal comes to
watch         list and watch of one collection, in bounded memory; listing: a list as it arrives
kubelet       the node's pods from the kubelet itself
pods          the pods of this node by uid, which outlive their source
node          the node's conditions and taints, and the patches that change them
documents     what else is written: pod statuses and events
"""
