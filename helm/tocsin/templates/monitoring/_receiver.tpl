{{/* One receiver of the AlertmanagerConfig. Takes a dict: root, name, severity, channels (its section). */}}
{{- define "tocsin.monitoring.receiver" -}}
{{- $root := .root -}}
{{- $relay := $root.Values.monitoring.relay -}}
- name: {{ .name }}
{{- with .channels }}
  {{- if or .relay .webhookSecret.name }}
  webhookConfigs:
    {{- if .relay }}
    - url: {{ printf "%s/alerts/%s" (include "tocsin.monitoring.relay" $root) .relay | quote }}
      sendResolved: true
      {{- if $relay.tokenSecret.name }}
      httpConfig:
        authorization:
          type: Bearer
          credentials:
            {{- include "tocsin.monitoring.secretKey" $relay.tokenSecret | nindent 12 }}
      {{- end }}
    {{- end }}
    {{- if .webhookSecret.name }}
    - urlSecret:
        {{- include "tocsin.monitoring.secretKey" .webhookSecret | nindent 8 }}
      sendResolved: true
    {{- end }}
  {{- end }}
  {{- if .pagerdutySecret.name }}
  pagerdutyConfigs:
    - routingKey:
        {{- include "tocsin.monitoring.secretKey" .pagerdutySecret | nindent 8 }}
      sendResolved: true
      severity: {{ $.severity }}
      {{- $root.Files.Get "files/receivers/pagerduty.yaml" | trim | nindent 6 }}
  {{- end }}
  {{- if .slack.urlSecret.name }}
  slackConfigs:
    - apiURL:
        {{- include "tocsin.monitoring.secretKey" .slack.urlSecret | nindent 8 }}
      {{- with .slack.channel }}
      channel: {{ . | quote }}
      {{- end }}
      sendResolved: true
      {{- $root.Files.Get "files/receivers/slack.yaml" | trim | nindent 6 }}
  {{- end }}
  {{- if .email.to }}
  emailConfigs:
    - to: {{ .email.to | quote }}
      {{- with .email.fromAddress }}
      from: {{ . | quote }}
      {{- end }}
      {{- with .email.smarthost }}
      smarthost: {{ . | quote }}
      {{- end }}
      {{- if .email.username }}
      authUsername: {{ .email.username | quote }}
      authPassword:
        {{- include "tocsin.monitoring.secretKey" .email.passwordSecret | nindent 8 }}
      {{- end }}
      sendResolved: true
      {{- $root.Files.Get "files/receivers/email.yaml" | trim | nindent 6 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* A reference to one key of a Secret. Takes a SecretRef section. */}}
{{- define "tocsin.monitoring.secretKey" -}}
name: {{ .name | quote }}
key: {{ .key | quote }}
{{- end -}}
