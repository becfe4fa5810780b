{{- define "reactor.selectorLabels" -}}
app.kubernetes.io/name: reactor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "reactor.labels" -}}
{{ include "reactor.selectorLabels" . }}
{{ include "reactor.commonLabels" . }}
{{- end }}

{{- define "reactor.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "reactor.name" -}}
{{- if eq .Release.Name "reactor" }}reactor{{ else }}{{ printf "%s-reactor" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* The runtime's directories on the node: socket and storage. Given a group's values. */ -}}
{{- define "reactor.socketDirectory" -}}
{{- if eq .runtime "crio" }}/run/crio{{ else if eq .runtime "containerd" }}/run/containerd
{{- else }}{{ fail (printf "runtime: %q; accepted: containerd, crio" .runtime) }}{{ end }}
{{- end }}

{{- define "reactor.storageDirectory" -}}
{{- if eq .runtime "crio" }}/var/lib/containers{{ else }}/var/lib/containerd{{ end }}
{{- end }}

{{- /* reactor's own socket, which the probes ask. Given a configuration. */ -}}
{{- define "reactor.socket" -}}
{{- $section := get . "reactor" | default dict -}}
{{- get $section "socket" | default "/run/reactor/reactor.sock" -}}
{{- end -}}

{{- /* Where a daemon serves its metrics. Given a configuration. */ -}}
{{- define "reactor.metricsAddress" -}}
{{- $section := get . "reactor" | default dict -}}
{{- $address := "127.0.0.1:9753" -}}
{{- if hasKey $section "metrics" -}}{{- $address = get $section "metrics" -}}{{- end -}}
{{- if kindIs "bool" $address -}}off{{- else -}}{{- $address -}}{{- end -}}
{{- end -}}
