{{/* What every pod of the release has: restricted security, volumes, environment. */}}

{{/* securityContext of a pod; holds for containers that others inject too. */}}
{{- define "tocsin.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* securityContext of a container. */}}
{{- define "tocsin.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
capabilities:
  drop:
    - ALL
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/*
resources of a container from a Resources section. Memory and local disk are requested in full.
Takes a dict: resources, and optionally gpu {count, resourceName}.
*/}}
{{- define "tocsin.resources" -}}
{{- $gpu := default (dict "count" 0) .gpu -}}
requests:
  cpu: {{ .resources.cpu | quote }}
  memory: {{ .resources.memory | quote }}
  {{- with .resources.ephemeralStorage }}
  ephemeral-storage: {{ . | quote }}
  {{- end }}
  {{- if gt (int $gpu.count) 0 }}
  {{ $gpu.resourceName }}: {{ $gpu.count | toString | quote }}
  {{- end }}
limits:
  {{- with .resources.cpuLimit }}
  cpu: {{ . | quote }}
  {{- end }}
  memory: {{ .resources.memory | quote }}
  {{- with .resources.ephemeralStorage }}
  ephemeral-storage: {{ . | quote }}
  {{- end }}
  {{- if gt (int $gpu.count) 0 }}
  {{ $gpu.resourceName }}: {{ $gpu.count | toString | quote }}
  {{- end }}
{{- end -}}

{{/*
Volumes that a read-only root filesystem asks for. Takes a dict: root, scratch (size), sharedMemory
(size, or "" for none), policy (mount the chaos policy).
*/}}
{{- define "tocsin.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ .scratch | quote }}
- name: state
  emptyDir:
    sizeLimit: {{ .scratch | quote }}
{{- with .sharedMemory }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ . | quote }}
{{- end }}
{{- if .policy }}
- name: chaos-policy
  configMap:
    name: {{ include "tocsin.configMap.chaos" .root | quote }}
{{- end }}
{{- if eq .root.Values.model.source "pvc" }}
- name: model
  persistentVolumeClaim:
    claimName: {{ .root.Values.model.claimName | quote }}
    readOnly: true
{{- end }}
{{- end -}}

{{/* Where those volumes are mounted; takes the same dict. */}}
{{- define "tocsin.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
- name: state
  mountPath: /var/lib/tocsin
{{- if .sharedMemory }}
- name: shm
  mountPath: /dev/shm
{{- end }}
{{- if .policy }}
- name: chaos-policy
  mountPath: /etc/tocsin/chaos
  readOnly: true
{{- end }}
{{- if eq .root.Values.model.source "pvc" }}
- name: model
  mountPath: /models
  readOnly: true
  {{- with .root.Values.model.subPath }}
  subPath: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Environment that every container of ours has. Takes the root context. */}}
{{- define "tocsin.env" -}}
- name: HOME
  value: /var/lib/tocsin
- name: TOCSIN_STATE
  value: /var/lib/tocsin/state
- name: TOCSIN_CACHE
  value: /var/lib/tocsin/cache
- name: HF_HUB_OFFLINE
  value: "1"
- name: RAY_USAGE_STATS_ENABLED
  value: "0"
{{- with .Values.telemetry }}
{{- if .enabled }}
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ .ratio | toString | quote }}
{{- if .endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
- name: OTEL_EXPORTER_OTLP_PROTOCOL
  value: http/protobuf
{{- end }}
{{- else }}
- name: OTEL_SDK_DISABLED
  value: "true"
{{- end }}
{{- end }}
{{- end -}}

{{/* Environment of containers whose metrics are scraped and whom the chaos policy binds. */}}
{{- define "tocsin.env.measured" -}}
- name: TOCSIN_METRICS_HOST
  value: node
- name: TOCSIN_METRICS_PORT
  value: "9464"
- name: TOCSIN_CHAOS_POLICY
  value: /etc/tocsin/chaos/policy.yaml
{{- end -}}

{{/* The bearer token from a Secret, or nothing. */}}
{{- define "tocsin.env.token" -}}
{{- with .Values.token -}}
{{- if .name -}}
- name: TOCSIN_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .name | quote }}
      key: {{ .key | quote }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Variables that a person added, or nothing. */}}
{{- define "tocsin.env.extra" -}}
{{- range .Values.extraEnv }}
- name: {{ .name | quote }}
  {{- if (default dict .secretKeyRef).name }}
  valueFrom:
    secretKeyRef:
      name: {{ .secretKeyRef.name | quote }}
      key: {{ default "token" .secretKeyRef.key | quote }}
  {{- else }}
  value: {{ default "" .value | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/*
Where a pod runs, from a Placement section: nodeSelector, affinity, tolerations, classes; or nothing.
Takes a dict: place, and optionally gpu {count, resourceName}.
*/}}
{{- define "tocsin.placement" -}}
{{- include "tocsin.placement.lines" . | trim -}}
{{- end -}}

{{- define "tocsin.placement.lines" -}}
{{- $gpu := default (dict "count" 0) .gpu -}}
{{- with .place.nodeSelector }}
nodeSelector:
  {{- range $key, $value := . }}
  {{ $key | quote }}: {{ $value | quote }}
  {{- end }}
{{- end }}
{{- with .place.nodeAffinity }}
{{- if or .required .preferred }}
affinity:
  nodeAffinity:
    {{- with .required }}
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            {{- range . }}
            {{- include "tocsin.matchExpression" . | nindent 12 }}
            {{- end }}
    {{- end }}
    {{- with .preferred }}
    preferredDuringSchedulingIgnoredDuringExecution:
      {{- range . }}
      - weight: {{ int (default 50 .weight) }}
        preference:
          matchExpressions:
            {{- include "tocsin.matchExpression" . | nindent 12 }}
      {{- end }}
    {{- end }}
{{- end }}
{{- end }}
{{- if or .place.tolerations (gt (int $gpu.count) 0) }}
tolerations:
  {{- if gt (int $gpu.count) 0 }}
  - key: {{ $gpu.resourceName | quote }}
    operator: Exists
    effect: NoSchedule
  {{- end }}
  {{- range .place.tolerations }}
  - key: {{ .key | quote }}
    operator: {{ default "Exists" .operator }}
    {{- with .value }}
    value: {{ . | quote }}
    {{- end }}
    {{- with .effect }}
    effect: {{ . }}
    {{- end }}
  {{- end }}
{{- end }}
{{- with .place.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .place.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "tocsin.matchExpression" -}}
- key: {{ .key | quote }}
  operator: {{ default "In" .operator }}
  {{- with .values }}
  values:
    {{- range . }}
    - {{ . | quote }}
    {{- end }}
  {{- end }}
{{- end -}}
