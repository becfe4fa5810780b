{{- /*
Merge a mapping into another one, in place: mappings key by key, lists as a whole; null takes a key away. These are
the rules of reactor's own drop-ins. Given a list: what is merged into, what is merged.
*/ -}}
{{- define "reactor.merge" -}}
{{- $base := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- $old := get $base $key -}}
{{- if kindIs "invalid" $value -}}{{- $_ := unset $base $key -}}
{{- else if and (kindIs "map" $value) (kindIs "map" $old) -}}{{- include "reactor.merge" (list $old $value) -}}
{{- else -}}{{- $_ := set $base $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /*
The groups of nodes, each with a DaemonSet and a ConfigMap of its own: the pools in their order, and last all nodes
that are in no pool. The first pool that a node matches is its pool: each group leaves out, by node affinity, what
the pools before it have. So no node has two daemons, whatever its labels are.

Given a list: the root, a dict whose key "groups" is set to a list of dicts:
  name, pool     the objects' name; the pool's name, empty for the nodes of no pool
  values         the values of the group
  config         its configuration
  terms          its node affinity: a list of lists of expressions; empty where there is nothing to leave out
*/ -}}
{{- define "reactor.groups" -}}
{{- $root := index . 0 -}}
{{- $groups := list -}}
{{- $terms := list (list) -}}
{{- $seen := dict -}}
{{- $last := dict "name" "" -}}
{{- range $index, $pool := append ($root.Values.pools | default list) $last -}}
{{- $isPool := ne $pool.name "" -}}
{{- if hasKey $seen $pool.name -}}
{{- fail (printf "pools[%d].name: %q; accepted: a name that no other pool has" $index $pool.name) -}}
{{- end -}}
{{- $_ := set $seen $pool.name true -}}

{{- $values := deepCopy $root.Values -}}
{{- $_ := unset $values "pools" -}}
{{- include "reactor.merge" (list $values (deepCopy (omit $pool "name"))) -}}
{{- $config := $values.config -}}
{{- $section := get $config "reactor" | default dict -}}
{{- $_ := set $config "reactor" $section -}}
{{- $where := ternary (printf "pools[%d]: " $index) "" $isPool -}}
{{- if hasKey $section "dryRun" -}}
{{- fail (printf "%sconfig.reactor.dryRun: %v; accepted: the value dryRun beside config" $where $section.dryRun) -}}
{{- end -}}
{{- if $values.dryRun -}}
{{- $kubernetes := get $section "kubernetes" | default dict -}}
{{- if eq (get $kubernetes "role" | toString) "sole" -}}
{{- fail (printf "%sdryRun: true with config.reactor.kubernetes.role: sole; accepted: dryRun: false, or role: alongside. The kubelet's own eviction is off with role: sole, so nobody would evict" $where) -}}
{{- end -}}
{{- $_ := set $section "dryRun" true -}}
{{- end -}}

{{- $name := include "reactor.name" $root -}}
{{- if $isPool -}}
{{- $name = printf "%s-%s" $name $pool.name -}}
{{- if gt (len $name) 63 -}}
{{- fail (printf "pools[%d].name: %q; accepted: one by which the DaemonSet's name, %q, has 63 characters at most" $index $pool.name $name) -}}
{{- end -}}
{{- end -}}

{{- $own := list -}}
{{- range $term := $terms -}}
{{- $expressions := concat $term ($values.nodeExpressions | default list) -}}
{{- if $expressions -}}{{- $own = append $own $expressions -}}{{- end -}}
{{- end -}}
{{- $groups = append $groups (dict "name" $name "pool" $pool.name "values" $values "config" $config "terms" $own) -}}

{{- if $isPool -}}
{{- /* Not (a and b and …) is not a, or not b, or …: one term for each, for each that there is already. */ -}}
{{- $next := list -}}
{{- range $term := $terms -}}
{{- range $key, $value := $pool.nodeSelector -}}
{{- $next = append $next (append $term (dict "key" $key "operator" "NotIn" "values" (list $value))) -}}
{{- end -}}
{{- end -}}
{{- $terms = $next -}}
{{- if gt (len $terms) 64 -}}
{{- fail (printf "pools[%d].nodeSelector: the selectors so far make %d terms of node affinity; accepted: 64 at most, by selectors of one label each" $index (len $terms)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set (index . 1) "groups" $groups -}}
{{- end -}}

{{- /* A pool's own objects are told apart by their name, so that no DaemonSet selects another one's pods. */ -}}
{{- define "reactor.groupSelectorLabels" -}}
{{- if .group.pool -}}
app.kubernetes.io/name: reactor-pool
app.kubernetes.io/instance: {{ .root.Release.Name }}
reactor/pool: {{ .group.pool }}
{{- else -}}
{{ include "reactor.selectorLabels" .root }}
{{- end }}
{{- end }}

{{- define "reactor.groupLabels" -}}
{{ include "reactor.groupSelectorLabels" . }}
{{ include "reactor.commonLabels" .root }}
{{- end }}
