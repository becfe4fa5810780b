"""The dashboard of deploy/monitoring as a picture: what a real Prometheus answers each of its panels."""
