# Tests on a real Kubernetes node: etcd, kube-apiserver, containerd and a kubelet on this machine. See README.md.
.PHONY: test-kube race-kube delays-kube load-kube
test-kube: setup ## Run tests/kube, or what PYTEST="…" says of them (root; Error 3: the cluster was lost)
	tests/kube/install-packages.sh
	tests/kube/build-kubernetes.sh >/dev/null
	$(BIN)/pytest tests/kube $(PYTEST)

race-kube: setup ## The same hog evicted by the kubelet, twice, and by the reactor: times and overshoot (root)
	tests/kube/install-packages.sh
	tests/kube/build-kubernetes.sh >/dev/null
	$(BIN)/python tests/kube/race.py $(RACE)

delays-kube: setup ## How late the cluster hears after an outage, and of a reason that a kubelet drops (root)
	tests/kube/install-packages.sh
	tests/kube/build-kubernetes.sh >/dev/null
	$(BIN)/python tests/kube/delays.py $(DELAYS)

load-kube: setup ## What an API server sees of many idle, starting and pressed nodes, and of one kubelet (root)
	tests/kube/install-packages.sh
	tests/kube/build-kubernetes.sh >/dev/null
	$(BIN)/python tests/kube/load.py $(LOAD)
