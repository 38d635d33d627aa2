{{/* What NOTES.txt says about monitoring; nothing when nothing of it is on. Takes the root context. */}}
{{- define "tocsin.monitoring.notes" -}}
{{- $monitoring := .Values.monitoring -}}
{{- with $monitoring -}}
{{- $selected := or .podMonitor.enabled .prometheusRule.enabled .alertmanagerConfig.enabled -}}
{{- if or $selected .dashboards.enabled .relay.enabled -}}
Monitoring:
{{- if .podMonitor.enabled }}
  PodMonitor {{ include "tocsin.fullname" $ }}, port metrics, every {{ int .podMonitor.intervalSeconds }} s
{{- end }}
{{- if .prometheusRule.enabled }}
  PrometheusRule {{ include "tocsin.fullname" $ }}, every rule held to namespace {{ $.Release.Namespace }} and release {{ $.Release.Name }}
{{- end }}
{{- if .alertmanagerConfig.enabled }}
  AlertmanagerConfig {{ include "tocsin.fullname" $ }}: the operator leaves the whole object out when one of its Secrets or keys is missing
{{- end }}
{{- if .dashboards.enabled }}
  six dashboards for the sidecar that looks for {{ .dashboards.label }}={{ .dashboards.labelValue }}
{{- end }}
{{- if .relay.enabled }}
  relay {{ include "tocsin.monitoring.relay" $ }}; its file must listen on 0.0.0.0:9465 and keep its state below /var/lib/tocsin
{{- end }}
{{- if and $selected (not .labels) (not .podMonitor.labels) (not .prometheusRule.labels) }}
  ! kube-prometheus-stack selects only objects that carry its own release as a label:
    --set monitoring.labels.release=<release of kube-prometheus-stack>
{{- end }}
{{- if and .prometheusRule.enabled (not .podMonitor.enabled) }}
  ! the rules ask for series with the labels job=tocsin, namespace, release and instance: whatever scrapes the pods must set these
{{- end }}
{{- if and .podMonitor.enabled (not .prometheusRule.enabled) }}
  ! nothing alerts: monitoring.prometheusRule.enabled is false
{{- end }}
{{- if and .prometheusRule.enabled (eq .prometheusRule.p2Severity "info") }}
  P2 alerts have severity info, which kube-prometheus-stack mutes while nothing graver fires in the namespace (monitoring.prometheusRule.p2Severity)
{{- end }}
{{- if and .prometheusRule.enabled (include "tocsin.monitoring.armed" $) }}
{{- if eq .prometheusRule.drills "armed" }}
  ! chaos is armed: EVERY alert of this release counts as a drill's{{ if not .alertmanagerConfig.drillsPage }} and pages nobody{{ end }} until it is disarmed
{{- else if eq .prometheusRule.drills "never" }}
  ! chaos is armed, and what it breaks pages people in earnest (monitoring.prometheusRule.drills=never)
{{- else }}
  chaos is armed: what fails while an experiment runs counts as a drill's{{ if not .alertmanagerConfig.drillsPage }} and pages nobody{{ end }}; outside of runs alerts are in earnest
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}
{{- end -}}
