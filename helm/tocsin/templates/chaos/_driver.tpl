{{/* The pod that attacks and judges; a template of a Job. */}}
{{- define "tocsin.chaos.podTemplate" -}}
{{- $driver := .Values.chaos.driver -}}
{{- $disk := dict "root" . "scratch" "4Gi" "sharedMemory" "" "policy" true -}}
metadata:
  labels:
    {{- include "tocsin.selectorLabels" (dict "root" . "component" "chaos") | nindent 4 }}
spec:
  serviceAccountName: {{ include "tocsin.serviceAccount.chaos" . | quote }}
  automountServiceAccountToken: true
  enableServiceLinks: false
  restartPolicy: Never
  terminationGracePeriodSeconds: {{ int $driver.terminationGracePeriodSeconds }}
  securityContext:
    {{- include "tocsin.podSecurityContext" . | nindent 4 }}
  {{- with include "tocsin.pullSecrets" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "tocsin.placement" (dict "place" $driver) | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: chaos
      image: {{ include "tocsin.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command:
        - tocsin
      args:
        {{- include "tocsin.chaos.arguments" . | nindent 8 }}
      env:
        {{- include "tocsin.env" . | nindent 8 }}
        {{- include "tocsin.env.measured" . | nindent 8 }}
        - name: RAY_ADDRESS
          value: ray://{{ include "tocsin.service.head" . }}:10001
        - name: POD_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        - name: TOCSIN_CHAOS_ANNOUNCE_S
          value: {{ include "tocsin.monitoring.announceSeconds" . | quote }}
      {{- with .Values.chaos.publish }}
      {{- if and .url .secretName }}
      envFrom:
        - secretRef:
            name: {{ .secretName | quote }}
      {{- end }}
      {{- end }}
      ports:
        - name: metrics
          containerPort: 9464
          protocol: TCP
      resources:
        {{- include "tocsin.resources" (dict "resources" $driver.resources) | nindent 8 }}
      securityContext:
        {{- include "tocsin.containerSecurityContext" . | nindent 8 }}
      volumeMounts:
        {{- include "tocsin.volumeMounts" $disk | nindent 8 }}
        - name: reports
          mountPath: /var/lib/tocsin/store
  volumes:
    {{- include "tocsin.volumes" $disk | nindent 4 }}
    - name: reports
      {{- with .Values.chaos.report }}
      {{- if .claimName }}
      persistentVolumeClaim:
        claimName: {{ .claimName | quote }}
      {{- else }}
      emptyDir:
        sizeLimit: {{ .size | quote }}
      {{- end }}
      {{- end }}
{{- end -}}

{{/* Seconds after which a run is ended, however it stands. */}}
{{- define "tocsin.chaos.deadline" -}}
{{- with .Values.chaos -}}
{{- add (int .maxDurationSeconds) (int .driver.startupSeconds) (int .driver.waitSeconds) -}}
{{- end -}}
{{- end -}}

{{/* What a Job of the driver is: one pod, never repeated by itself, ended when it takes too long. */}}
{{- define "tocsin.chaos.jobSpec" -}}
{{- $chaos := .Values.chaos -}}
backoffLimit: 0
activeDeadlineSeconds: {{ include "tocsin.chaos.deadline" . }}
template:
  {{- include "tocsin.chaos.podTemplate" . | nindent 2 }}
{{- end -}}

{{/* Eight hexadecimal digits of everything that decides what a run does, and of the word that names it. */}}
{{- define "tocsin.chaos.digest" -}}
{{- $parts := list .Values.chaos.runOnce .Values.chaos.experiment.text (include "tocsin.chaos.jobSpec" .) (include "tocsin.chaos.policy" .) (include "tocsin.chaos.arguments" .) -}}
{{- join "\n" $parts | sha256sum | trunc 8 -}}
{{- end -}}

{{/*
The spec of a RayJob on the release's own cluster. Its driver is a process in the head's pod. With a
clusterSelector KubeRay refuses retries and ignores deletion rules, so neither is said. Takes a dict:
root, and further words of the command line.
*/}}
{{- define "tocsin.chaos.rayJobSpec" -}}
{{- $further := .further -}}
{{- with .root -}}
{{- $words := list -}}
{{- range concat (list "tocsin") (include "tocsin.chaos.arguments" . | fromYamlArray) $further -}}
{{- $words = append $words (ternary . (squote .) (regexMatch "^[A-Za-z0-9_./:=@%+-]+$" .)) -}}
{{- end -}}
entrypoint: {{ join " " $words | quote }}
# The hub of the head's pod holds port 9464 and tells how the run goes.
runtimeEnvYAML: |-
  env_vars:
    TOCSIN_METRICS_HOST: ""
    TOCSIN_CHAOS_ANNOUNCE_S: {{ include "tocsin.monitoring.announceSeconds" . | quote }}
submissionMode: HTTPMode
clusterSelector:
  ray.io/cluster: {{ include "tocsin.fullname" . | quote }}
activeDeadlineSeconds: {{ include "tocsin.chaos.deadline" . }}
shutdownAfterJobFinishes: false
{{- end -}}
{{- end -}}
