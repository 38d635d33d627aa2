{{/* Pod templates of the Ray head and of one worker group. */}}

{{- define "tocsin.headPod" -}}
{{- $head := .Values.head -}}
{{- $volumes := dict "root" . "scratch" $head.scratch "sharedMemory" $head.sharedMemory "policy" true -}}
metadata:
  labels:
    {{- include "tocsin.selectorLabels" (dict "root" . "component" "head") | nindent 4 }}
  {{- with include "tocsin.annotations" $head.podAnnotations }}
  {{- . | nindent 2 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "tocsin.serviceAccount.head" . }}
  automountServiceAccountToken: {{ include "tocsin.headHasToken" . }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ int $head.terminationGracePeriodSeconds }}
  securityContext:
    {{- include "tocsin.podSecurityContext" . | nindent 4 }}
  {{- with include "tocsin.pullSecrets" . }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "tocsin.placement" (dict "place" $head) }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: ray-head
      image: {{ include "tocsin.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      env:
        {{- include "tocsin.env.ray" . | nindent 8 }}
      ports:
        - name: gcs-server
          containerPort: 6379
        - name: dashboard
          containerPort: 8265
        - name: client
          containerPort: 10001
        - name: serve
          containerPort: 8000
        - name: metrics
          containerPort: 9464
      resources:
        {{- include "tocsin.resources" (dict "resources" $head.resources) | nindent 8 }}
      {{- include "tocsin.probes" (dict "probes" $head.probes "ready" "node") | nindent 6 }}
      securityContext:
        {{- include "tocsin.containerSecurityContext" . | nindent 8 }}
      volumeMounts:
        {{- include "tocsin.volumeMounts" $volumes | nindent 8 }}
        {{- if eq .Values.topology "cluster" }}
        - name: serve
          mountPath: /etc/tocsin/serve
          readOnly: true
        {{- end }}
  volumes:
    {{- include "tocsin.volumes" $volumes | nindent 4 }}
    {{- if eq .Values.topology "cluster" }}
    - name: serve
      configMap:
        name: {{ include "tocsin.configMap.serve" . | quote }}
    {{- end }}
{{- end -}}

{{/* Takes a dict: root, name, group (the merged values of the group). */}}
{{- define "tocsin.workerPod" -}}
{{- $group := .group -}}
{{- $volumes := dict "root" .root "scratch" $group.scratch "sharedMemory" $group.sharedMemory "policy" true -}}
metadata:
  labels:
    {{- include "tocsin.selectorLabels" (dict "root" .root "component" "worker") | nindent 4 }}
    {{- if $group.chaosTarget }}
    tocsin.dev/chaos-target: "true"
    {{- end }}
  {{- with include "tocsin.annotations" $group.podAnnotations }}
  {{- . | nindent 2 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "tocsin.serviceAccount.worker" .root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ int $group.terminationGracePeriodSeconds }}
  securityContext:
    {{- include "tocsin.podSecurityContext" .root | nindent 4 }}
  {{- with include "tocsin.pullSecrets" .root }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "tocsin.placement" (dict "place" $group "gpu" $group.gpu) }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "tocsin.spread" . }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: ray-worker
      image: {{ include "tocsin.image" .root | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      env:
        {{- include "tocsin.env.ray" .root | nindent 8 }}
      ports:
        - name: serve
          containerPort: 8000
        - name: metrics
          containerPort: 9464
      resources:
        {{- include "tocsin.resources" (dict "resources" $group.resources "gpu" $group.gpu) | nindent 8 }}
      {{- include "tocsin.probes" (dict "probes" $group.probes "ready" (ternary "proxy" "node" (eq .root.Values.topology "service"))) | nindent 6 }}
      securityContext:
        {{- include "tocsin.containerSecurityContext" .root | nindent 8 }}
      volumeMounts:
        {{- include "tocsin.volumeMounts" $volumes | nindent 8 }}
  volumes:
    {{- include "tocsin.volumes" $volumes | nindent 4 }}
{{- end -}}

{{/*
Whether the head pod gets a token for the API server: the autoscaler needs one, and a chaos driver inside
the head, which only the topology cluster can have. Asked by topology and by nothing below chaos, so that no
value there makes a pod anew; while no driver may run there, the account behind the token has no rights.
*/}}
{{- define "tocsin.headHasToken" -}}
{{- or .Values.ray.autoscaling.enabled (eq .Values.topology "cluster") -}}
{{- end -}}

{{/* "true" while something in the head pod asks the API server. */}}
{{- define "tocsin.headAsksTheApi" -}}
{{- if or .Values.ray.autoscaling.enabled (include "tocsin.chaos.inHead" .) -}}true{{- end -}}
{{- end -}}

{{/* Environment of head and worker containers. */}}
{{- define "tocsin.env.ray" -}}
{{ include "tocsin.env" . }}
{{ include "tocsin.env.measured" . }}
{{- with include "tocsin.env.token" . }}
{{ . }}
{{- end }}
{{- with .Values.alertmanager.url }}
- name: TOCSIN_ALERTMANAGER_URL
  value: {{ . | quote }}
- name: TOCSIN_GATEWAY_URL
  value: {{ printf "http://%s.%s:8000" (include "tocsin.service.serve" $) $.Release.Namespace | quote }}
# What the release's rules put on every alert: a push without these would be another alert.
- name: TOCSIN_ALERT_LABELS
  value: {{ printf "namespace=%s,release=%s" $.Release.Namespace $.Release.Name | quote }}
{{- end }}
{{- include "tocsin.env.extra" . }}
{{- end -}}

{{/*
Probes of a Ray container. KubeRay fills in those that are missing, with tools that the image need not
have: all three are said here. /api/healthz answers for raylet and GCS (Ray 2.53 and later). A worker of a
RayService is ready once its Serve proxy is. A RayJob waits for every pod to be ready before it deploys
anything, so in a RayCluster the proxy cannot be asked for.
Takes a dict: probes, ready ("node" or "proxy").
*/}}
{{- define "tocsin.probes" -}}
startupProbe:
  httpGet:
    path: /api/healthz
    port: 52365
  {{- include "tocsin.probe" .probes.startup | nindent 2 }}
readinessProbe:
  httpGet:
    {{- if eq .ready "proxy" }}
    path: /-/healthz
    port: serve
    {{- else }}
    path: /api/healthz
    port: 52365
    {{- end }}
  {{- include "tocsin.probe" .probes.readiness | nindent 2 }}
livenessProbe:
  httpGet:
    path: /api/healthz
    port: 52365
  {{- include "tocsin.probe" .probes.liveness | nindent 2 }}
{{- end -}}

{{- define "tocsin.probe" -}}
periodSeconds: {{ int .periodSeconds }}
timeoutSeconds: {{ int .timeoutSeconds }}
failureThreshold: {{ int .failureThreshold }}
{{- end -}}

{{- define "tocsin.annotations" -}}
{{- with . -}}
annotations:
  {{- range $key, $value := . }}
  {{ $key | quote }}: {{ $value | quote }}
  {{- end }}
{{- end -}}
{{- end -}}

{{/* topologySpreadConstraints of a worker group, or nothing. */}}
{{- define "tocsin.spread" -}}
{{- $places := dict "kubernetes.io/hostname" .group.topologySpread.hostname "topology.kubernetes.io/zone" .group.topologySpread.zone -}}
{{- $kept := list -}}
{{- range $key, $spread := $places -}}
{{- if gt (int $spread.maxSkew) 0 -}}
{{- $kept = append $kept (dict "key" $key "spread" $spread) -}}
{{- end -}}
{{- end -}}
{{- with $kept -}}
topologySpreadConstraints:
  {{- range . }}
  - topologyKey: {{ .key }}
    maxSkew: {{ int .spread.maxSkew }}
    whenUnsatisfiable: {{ .spread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "tocsin.selectorLabels" (dict "root" $.root "component" "worker") | nindent 8 }}
        ray.io/group: {{ $.name | quote }}
  {{- end }}
{{- end -}}
{{- end -}}
