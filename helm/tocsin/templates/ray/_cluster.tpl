{{/*
The Ray cluster, one template for RayService and RayCluster. KubeRay makes a new cluster, and needs its
GPUs twice, when anything in here changes besides replicas and tolerations: nothing in here may come from
the chart's version, from a ConfigMap's content or from chaos being armed.
*/}}
{{- define "tocsin.rayCluster" -}}
rayVersion: {{ .Values.ray.version | quote }}
{{- with .Values.ray.gcsFaultTolerance }}
{{- if .enabled }}
gcsFaultToleranceOptions:
  redisAddress: {{ .redisAddress | quote }}
  {{- with .usernameSecret }}
  {{- if .name }}
  redisUsername:
    {{- include "tocsin.fromSecret" . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- with .passwordSecret }}
  {{- if .name }}
  redisPassword:
    {{- include "tocsin.fromSecret" . | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end }}
{{- end }}
{{- with .Values.ray.autoscaling }}
{{- if .enabled }}
enableInTreeAutoscaling: true
autoscalerOptions:
  version: v2
  idleTimeoutSeconds: {{ int .idleTimeoutSeconds }}
  upscalingMode: {{ .upscalingMode }}
  imagePullPolicy: {{ $.Values.image.pullPolicy }}
  resources:
    {{- include "tocsin.resources" (dict "resources" .resources) | nindent 4 }}
  securityContext:
    {{- include "tocsin.containerSecurityContext" $ | nindent 4 }}
  env:
    - name: HOME
      value: /var/lib/tocsin
    - name: RAY_USAGE_STATS_ENABLED
      value: "0"
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    - name: state
      mountPath: /var/lib/tocsin
{{- end }}
{{- end }}
headGroupSpec:
  rayStartParams:
    num-cpus: "0"
    dashboard-host: "0.0.0.0"
    object-store-memory: {{ include "tocsin.bytes" .Values.head.objectStore | quote }}
  template:
    {{- include "tocsin.headPod" . | nindent 4 }}
workerGroupSpecs:
  {{- range $name, $own := .Values.workerGroups }}
  {{- $group := mergeOverwrite (deepCopy $.Values.worker) (deepCopy $own) }}
  - groupName: {{ $name | quote }}
    replicas: {{ int $group.replicas }}
    minReplicas: {{ int $group.minReplicas }}
    maxReplicas: {{ int $group.maxReplicas }}
    {{- if gt (int $group.idleTimeoutSeconds) 0 }}
    idleTimeoutSeconds: {{ int $group.idleTimeoutSeconds }}
    {{- end }}
    rayStartParams:
      object-store-memory: {{ include "tocsin.bytes" $group.objectStore | quote }}
      {{- if gt (int $group.gpu.count) 0 }}
      num-gpus: {{ int $group.gpu.count | toString | quote }}
      {{- end }}
    template:
      {{- include "tocsin.workerPod" (dict "root" $ "name" $name "group" $group) | nindent 6 }}
  {{- end }}
{{- end -}}

{{- define "tocsin.fromSecret" -}}
valueFrom:
  secretKeyRef:
    name: {{ .name | quote }}
    key: {{ .key | quote }}
{{- end -}}
