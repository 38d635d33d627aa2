{{/*
Names, labels and images. Most templates here take the root context; those that need more take a dict
with it under "root".
*/}}

{{/* F, the name that every object's name begins with; refused when KubeRay or Kubernetes would. */}}
{{- define "tocsin.fullname" -}}
{{- $chart := default .Chart.Name .Values.nameOverride -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $name = ternary .Release.Name (printf "%s-%s" .Release.Name $chart) (contains $chart .Release.Name) -}}
{{- end -}}
{{- if gt (len $name) 40 -}}
{{- fail (printf "name: %s has %d characters, expected at most 40; shorten the release's name or set fullnameOverride" $name (len $name)) -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "name: %s, expected a lower-case letter first and then letters, digits and hyphens; choose another release name or set fullnameOverride" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* Labels that never change while a release lives: selectors and pod templates carry these alone. */}}
{{- define "tocsin.selectorLabels" -}}
app.kubernetes.io/name: tocsin
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component | quote }}
{{- end -}}

{{/* Labels of objects; the version labels must not reach a pod template, or a chart bump rolls pods. */}}
{{- define "tocsin.labels" -}}
{{ include "tocsin.selectorLabels" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service | quote }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{/* The image of every pod: the digest wins over the tag. */}}
{{- define "tocsin.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository .tag -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* imagePullSecrets of a pod, or nothing. */}}
{{- define "tocsin.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Names of what this chart and KubeRay make. */}}
{{- define "tocsin.serviceAccount.head" -}}{{ include "tocsin.fullname" . }}-head{{- end -}}
{{- define "tocsin.serviceAccount.worker" -}}{{ include "tocsin.fullname" . }}-worker{{- end -}}
{{- define "tocsin.serviceAccount.chaos" -}}{{ include "tocsin.fullname" . }}-chaos{{- end -}}
{{- define "tocsin.serviceAccount.test" -}}{{ include "tocsin.fullname" . }}-test{{- end -}}
{{- define "tocsin.service.head" -}}{{ include "tocsin.fullname" . }}-head-svc{{- end -}}
{{- define "tocsin.service.serve" -}}{{ include "tocsin.fullname" . }}-serve-svc{{- end -}}
{{- define "tocsin.configMap.checker" -}}{{ include "tocsin.fullname" . }}-checker{{- end -}}
{{- define "tocsin.configMap.serve" -}}{{ include "tocsin.fullname" . }}-serve{{- end -}}
{{- define "tocsin.configMap.chaos" -}}{{ include "tocsin.fullname" . }}-chaos{{- end -}}
