{{- define "reactor.selectorLabels" -}}
app.kubernetes.io/name: reactor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "reactor.labels" -}}
{{ include "reactor.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "reactor.name" -}}
{{- if eq .Release.Name "reactor" }}reactor{{ else }}{{ printf "%s-reactor" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* The runtime's directories on the node: socket and storage. */ -}}
{{- define "reactor.socketDirectory" -}}
{{- if eq .Values.runtime "crio" }}/run/crio{{ else if eq .Values.runtime "containerd" }}/run/containerd
{{- else }}{{ fail (printf "runtime: %q; accepted: containerd, crio" .Values.runtime) }}{{ end }}
{{- end }}

{{- define "reactor.storageDirectory" -}}
{{- if eq .Values.runtime "crio" }}/var/lib/containers{{ else }}/var/lib/containerd{{ end }}
{{- end }}

{{- /* reactor's own socket, which the probes ask. */ -}}
{{- define "reactor.socket" -}}
{{- $section := get .Values.config "reactor" | default dict -}}
{{- get $section "socket" | default "/run/reactor/reactor.sock" -}}
{{- end -}}
