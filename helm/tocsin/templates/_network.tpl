{{/* Parts of NetworkPolicies. */}}

{{/* A selector of the release's pods of some components. Takes a dict: root, components. */}}
{{- define "tocsin.network.components" -}}
matchLabels:
  app.kubernetes.io/name: tocsin
  app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
matchExpressions:
  - key: app.kubernetes.io/component
    operator: In
    values:
      {{- range .components }}
      - {{ . | quote }}
      {{- end }}
{{- end -}}

{{/* Peers from a Peers section: the named namespaces (none named: all) and the address ranges. */}}
{{- define "tocsin.network.peers" -}}
{{- if .namespaces -}}
- namespaceSelector:
    matchExpressions:
      - key: kubernetes.io/metadata.name
        operator: In
        values:
          {{- range .namespaces }}
          - {{ . | quote }}
          {{- end }}
{{- else -}}
- namespaceSelector: {}
{{- end }}
{{- range .cidrs }}
- ipBlock:
    cidr: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Egress to the cluster's name servers, wherever they run: node-local caches are no pods. */}}
{{- define "tocsin.network.dns" -}}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
{{- end -}}

{{/* Egress to the API server; it is no pod, so only its ports and addresses can be named. */}}
{{- define "tocsin.network.api" -}}
- ports:
    {{- range .Values.chaos.apiServer.ports }}
    - port: {{ int . }}
      protocol: TCP
    {{- end }}
  {{- with .Values.chaos.apiServer.cidrs }}
  to:
    {{- range . }}
    - ipBlock:
        cidr: {{ . | quote }}
    {{- end }}
  {{- end }}
{{- end -}}
