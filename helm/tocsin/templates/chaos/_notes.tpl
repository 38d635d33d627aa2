{{/* What is armed, against whom, and how it is stopped; a part of NOTES.txt. */}}
{{- define "tocsin.chaos.notes" -}}
{{- $chaos := .Values.chaos -}}
{{- $name := include "tocsin.configMap.chaos" . -}}
{{- if not $chaos.enabled -}}
Chaos: OFF. The policy in ConfigMap {{ $name }} forbids every run; nothing can be injected.
{{- else -}}
{{- $demands := include "tocsin.chaos.demands" . | fromYaml -}}
{{- $groups := include "tocsin.chaos.targetGroups" . | splitList "," | compact -}}
{{- $pods := 0 -}}
{{- range $group := $groups -}}
{{- $set := default dict (get $.Values.workerGroups $group) -}}
{{- $pods = add $pods (int (ternary $set.replicas $.Values.worker.replicas (hasKey $set "replicas"))) -}}
{{- end -}}
{{- if $chaos.dryRun -}}
Chaos: DRY RUN. A run prints its plan and its targets and injects nothing.
{{- else -}}
Chaos: ARMED. Runs inject real faults into this release.
{{- end }}
  experiment   {{ ternary "your own (chaos.experiment.text)" $chaos.experiment.name (ne $chaos.experiment.text "") }}: {{ join ", " $demands.faults | default "no faults" }}
  allowed      faults of {{ len $chaos.allowedFaults }} {{ ternary "kind" "kinds" (eq (len $chaos.allowedFaults) 1) }}, at most {{ int $chaos.maxConcurrentFaults }} at the same time, {{ int $chaos.maxDurationSeconds }} s a run
  blast radius at most {{ int $chaos.maxTargets }} of {{ int .Values.serve.replicas }} replicas at the same time; {{ $pods }} worker pods carry the target label{{ with $groups }} (groups {{ join ", " . }}){{ end }}
  pods         {{ ternary "may be deleted, one by one, where they carry the label" "are never deleted" (eq (include "tocsin.chaos.deletes" .) "true") }}
  where        release {{ .Release.Name }} in namespace {{ .Release.Namespace }}, and nowhere else
  guards       namespace label {{ $chaos.namespaceLabel }}, pod label, Role of this namespace, one run at a time (Lease {{ $name }}){{ if $chaos.stopOnAlert.enabled }}, stop on alert{{ end }}{{ if $chaos.admissionPolicy.enabled }}, admission policy{{ end }}
  {{- if eq $chaos.kind "job" }}
  when         {{ with $chaos.runOnce }}once, now (run {{ . }}); another word in chaos.runOnce is another run{{ else }}when you start it{{ end }}
  {{- else if eq $chaos.kind "rayjob" }}
  when         {{ with $chaos.runOnce }}once, now, in the head's pod (run {{ . }}){{ else }}when you start it{{ end }}
  {{- else if $chaos.schedule }}
  when         {{ $chaos.schedule }} ({{ $chaos.timeZone }}){{ if eq $chaos.kind "raycronjob" }}, in the head's pod{{ end }}
  {{- else }}
  when         when you start it: CronJob {{ $name }} is suspended
  {{- end }}

  allow it in this namespace (its administrator):
    kubectl label namespace {{ .Release.Namespace }} {{ $chaos.namespaceLabel }}
  run it by hand:
    kubectl --namespace {{ .Release.Namespace }} create job --from=cronjob/{{ $name }} {{ include "tocsin.fullname" . }}-by-hand
  stop at once (what is injected is taken back):
    kubectl --namespace {{ .Release.Namespace }} delete {{ ternary "rayjobs,jobs" "jobs" (eq (include "tocsin.chaos.inHead" .) "true") }} --selector app.kubernetes.io/instance={{ .Release.Name }},app.kubernetes.io/component=chaos
  switch it off (ends a run under way, too):
    helm upgrade {{ .Release.Name }} CHART --namespace {{ .Release.Namespace }} --reset-then-reuse-values --set chaos.enabled=false
{{- end -}}
{{- end -}}
