{{/* What the objects for prometheus-operator and Grafana share. All take the root context unless said. */}}

{{/* Labels of an object that an operator selects. Takes a dict: root, section (with labels). */}}
{{- define "tocsin.monitoring.labels" -}}
{{ include "tocsin.labels" (dict "root" .root "component" "monitoring") }}
{{- range $key, $value := merge (dict) .section.labels .root.Values.monitoring.labels }}
{{ $key | quote }}: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* Where a person, and Alertmanager, find the served model: the head runs the gateway in both topologies. */}}
{{- define "tocsin.monitoring.inside" -}}
http://{{ include "tocsin.service.head" . }}.{{ .Release.Namespace }}.svc:8000
{{- end -}}

{{- define "tocsin.monitoring.gateway" -}}
{{- .Values.monitoring.links.gatewayUrl | default (include "tocsin.monitoring.inside" .) | trimSuffix "/" -}}
{{- end -}}

{{- define "tocsin.monitoring.docs" -}}
{{- .Values.monitoring.links.docsUrl | default (printf "%s/docs" (include "tocsin.monitoring.gateway" .)) | trimSuffix "/" -}}
{{- end -}}

{{/* Ends the uid of a dashboard: two releases in one Grafana must not share one. */}}
{{- define "tocsin.monitoring.uid" -}}
{{- printf "%s/%s" .Release.Namespace .Release.Name | sha256sum | trunc 8 -}}
{{- end -}}

{{/* "true" while chaos may strike, else nothing. */}}
{{- define "tocsin.monitoring.armed" -}}
{{- if and .Values.chaos.enabled (not .Values.chaos.dryRun) -}}true{{- end -}}
{{- end -}}

{{/*
Seconds between an experiment's beginning and its first fault, so that rules know of it: two scrapes
of the longest interval that drills=running allows. A constant: whatever changes the driver's pod
gives its Job another name, and so another run.
*/}}
{{- define "tocsin.monitoring.announceSeconds" -}}30{{- end -}}

{{/* A generated text with this release in its places. Takes a dict: root, text. */}}
{{- define "tocsin.monitoring.filled" -}}
{{- $values := .root.Values.monitoring -}}
{{- $uid := include "tocsin.monitoring.uid" .root -}}
{{- $live := printf "%s/live" (include "tocsin.monitoring.gateway" .root) -}}
{{- $operator := printf "%s?operator=" $live -}}
{{- with $values.links.grafanaUrl -}}
{{- $base := trimSuffix "/" . -}}
{{- $live = printf "%s/d/tocsin-overview-%s" $base $uid -}}
{{- $operator = printf "%s/d/tocsin-operators-%s?var-operator=" $base $uid -}}
{{- end -}}
{{- $text := .text -}}
{{- if and (eq $values.prometheusRule.drills "armed") (include "tocsin.monitoring.armed" .root) -}}
{{- $text = replace "__DRILL__" "true" $text -}}
{{- else -}}
{{- $text = regexReplaceAll "(?m)^.*__DRILL__.*\n" $text "" -}}
{{- end -}}
{{- $text
  | replace "__NAMESPACE__" .root.Release.Namespace
  | replace "__RELEASE__" .root.Release.Name
  | replace "__UID__" $uid
  | replace "__DOCS__" (include "tocsin.monitoring.docs" .root)
  | replace "__LIVE__" $live
  | replace "__LIVE_OPERATOR__" $operator
  | replace "__SEVERITY__" $values.prometheusRule.p2Severity
  | replace "\"__DRILLS_PAGE__\"" ($values.alertmanagerConfig.drillsPage | toString)
  | trim -}}
{{- end -}}

{{/* Address of the relay, or nothing. */}}
{{- define "tocsin.monitoring.relay" -}}
{{- if .Values.monitoring.relay.enabled -}}
http://{{ include "tocsin.fullname" . }}-relay.{{ .Release.Namespace }}.svc:9465
{{- else -}}
{{- .Values.monitoring.relay.url | trimSuffix "/" -}}
{{- end -}}
{{- end -}}

{{/* "true" if a receiver has a way to anybody. Takes its Channels section. */}}
{{- define "tocsin.monitoring.reaches" -}}
{{- if or .relay .webhookSecret.name .pagerdutySecret.name .slack.urlSecret.name .email.to -}}true{{- end -}}
{{- end -}}
