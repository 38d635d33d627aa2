{{/* What a person reads after an install. */}}
{{- define "tocsin.notes" -}}
{{- $name := include "tocsin.fullname" . -}}
{{- $namespace := .Release.Namespace -}}
{{- $serve := include "tocsin.service.serve" . -}}
{{- $pods := 0 -}}
{{- $targets := 0 -}}
{{- range $group, $own := .Values.workerGroups -}}
{{- $merged := mergeOverwrite (deepCopy $.Values.worker) (deepCopy $own) -}}
{{- $pods = add $pods (int $merged.replicas) -}}
{{- $targets = add $targets (ternary (int $merged.replicas) 0 $merged.chaosTarget) -}}
{{- end -}}
{{ $name }}: {{ int .Values.serve.replicas }} replicas of {{ .Values.model.name }}, profile {{ .Values.checker.profile }}, on {{ $pods }} worker pods and a head, as a {{ ternary "RayService" "RayCluster with a RayJob" (eq .Values.topology "service") }}.
{{- if .Values.ray.suspend }}
  ! ray.suspend is true: no Ray pod runs.
{{- end }}

Endpoints inside the cluster
  model      http://{{ $serve }}.{{ $namespace }}:8000/v1/chat/completions
  health     http://{{ $serve }}.{{ $namespace }}:8000/health
  checker    http://{{ $serve }}.{{ $namespace }}:8000/health/checker_status
  dashboard  http://{{ include "tocsin.service.head" . }}.{{ $namespace }}:8265
  metrics    port `metrics` (9464) of pods with app.kubernetes.io/name=tocsin, app.kubernetes.io/instance={{ .Release.Name }}

Next
  watch it start (the first start loads the weights):
    kubectl --namespace {{ $namespace }} get {{ ternary "rayservice" "raycluster,rayjob" (eq .Values.topology "service") }},pods --selector app.kubernetes.io/instance={{ .Release.Name }} --watch
  ask whether it is healthy and plan a chaos run without making one:
    helm test {{ .Release.Name }} --namespace {{ $namespace }} --logs
  use it from here:
    kubectl --namespace {{ $namespace }} port-forward service/{{ $serve }} 8000:8000
    curl -s http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \
      -d '{"messages": [{"role": "user", "content": "What is a tocsin?"}], "max_tokens": 32}'
{{- if not .Values.token.name }}
  ! POST /health/checker_status is closed: no Secret holds its token. To open it:
    kubectl --namespace {{ $namespace }} create secret generic {{ $name }}-token --from-literal=token="$(openssl rand -hex 24)"
    and set token.name={{ $name }}-token
{{- end }}
{{- if and (not .Values.image.digest) (eq .Values.image.repository "tocsin") }}
  ! image.repository is the default, which no registry serves: push the image to yours and set image.repository and image.digest
{{- end }}
{{- if and .Values.networkPolicy.enabled .Values.networkPolicy.operator.namespaces }}
  KubeRay is let in from {{ join ", " .Values.networkPolicy.operator.namespaces }}: if it runs elsewhere, set networkPolicy.operator.namespaces, or nothing is ever deployed.
{{- end }}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.serve.namespaces) }}
  Every namespace may call the model on port 8000 (networkPolicy.serve.namespaces narrows it).
{{- end }}
{{- if eq .Values.topology "cluster" }}
  ! A head that starts anew forgets what was deployed (no RayService watches it): helm upgrade with a changed value, or delete the RayJob and upgrade.
{{- end }}

Could be struck by chaos: {{ $targets }} of {{ $pods }} worker pods carry tocsin.dev/chaos-target.
{{- with lookup "v1" "Namespace" "" $namespace }}
{{- $label := splitn "=" 2 $.Values.chaos.namespaceLabel }}
{{- if and $.Values.chaos.enabled (ne (toString (get (default dict .metadata.labels) $label._0)) $label._1) }}
  ! Namespace {{ $namespace }} does not carry {{ $.Values.chaos.namespaceLabel }}: every run but a dry one is refused.
{{- end }}
{{- $missing := list }}
{{- range $kind, $wanted := dict "v1/PodMonitor" $.Values.monitoring.podMonitor.enabled "v1/PrometheusRule" $.Values.monitoring.prometheusRule.enabled "v1alpha1/AlertmanagerConfig" $.Values.monitoring.alertmanagerConfig.enabled }}
{{- if and $wanted (not ($.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/%s" $kind))) }}
{{- $missing = append $missing (base $kind) }}
{{- end }}
{{- end }}
{{- with $missing }}
  ! The cluster does not know {{ join ", " . }}: install prometheus-operator, or switch these values off.
{{- end }}
{{- end }}

{{ include "tocsin.chaos.notes" . }}
{{- with include "tocsin.monitoring.notes" . }}

{{ . }}
{{- end }}
{{- end -}}
