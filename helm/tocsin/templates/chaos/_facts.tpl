{{/* What the templates of this folder know: the experiment, the targets, the accounts, the command. */}}

{{/* Seconds of a duration such as 90s, 4m or 1h, as an experiment file writes it; "" for anything else. */}}
{{- define "tocsin.chaos.seconds" -}}
{{- $text := toString . | trim -}}
{{- if regexMatch "^[0-9]+(\\.[0-9]+)?\\s*(ms|s|m|h)$" $text -}}
{{- $number := regexFind "^[0-9]+(\\.[0-9]+)?" $text -}}
{{- $factor := get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0) (regexFind "[a-z]+$" $text) -}}
{{- mulf (float64 $number) $factor -}}
{{- end -}}
{{- end -}}

{{/*
Refuses a part of an experiment that has another shape than the program reads: `tocsin chaos lint` asks for
more, but a template that ranges over a word ends in eight lines of Go. Takes a dict: where, found, known (a
node of files/chaos/shape.yaml: keys and required of a mapping, items of a list, neither for anything else).
*/}}
{{- define "tocsin.chaos.shape" -}}
{{- $where := .where -}}
{{- $found := .found -}}
{{- $known := .known -}}
{{- $wanted := ternary "map" (ternary "slice" "" (hasKey $known "items")) (hasKey $known "keys") -}}
{{- if and $wanted (not (kindIs $wanted $found)) -}}
{{- fail (printf "chaos.experiment.text: %s is no %s, expected one; correct the file until tocsin chaos lint FILE takes it" $where (ternary "mapping" "list" (eq $wanted "map"))) -}}
{{- end -}}
{{- if eq $wanted "map" -}}
{{- $in := ternary "" (printf "%s." $where) (eq $where "") -}}
{{- range $key := get $known "required" -}}
{{- if not (hasKey $found $key) -}}
{{- fail (printf "chaos.experiment.text: %s%s is missing; correct the file until tocsin chaos lint FILE takes it" $in $key) -}}
{{- end -}}
{{- end -}}
{{- range $key, $inner := $found -}}
{{- if not (hasKey (get $known "keys") $key) -}}
{{- fail (printf "chaos.experiment.text: %s%s is not known, expected one of %s; correct the file until tocsin chaos lint FILE takes it" $in $key (keys (get $known "keys") | sortAlpha | join ", ")) -}}
{{- end -}}
{{- include "tocsin.chaos.shape" (dict "where" (printf "%s%s" $in $key) "found" $inner "known" (get (get $known "keys") $key)) -}}
{{- end -}}
{{- else if eq $wanted "slice" -}}
{{- range $at, $inner := $found -}}
{{- include "tocsin.chaos.shape" (dict "where" (printf "%s[%d]" $where $at) "found" $inner "known" (get $known "items")) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
What the experiment asks for, as YAML: faults, maxDurationSeconds. A built-in one's facts come from
files/chaos/experiments.yaml, which is written from the experiments themselves.
*/}}
{{- define "tocsin.chaos.demands" -}}
{{- with .Values.chaos.experiment -}}
{{- if .text -}}
{{- $spec := fromYaml .text -}}
{{- $error := default "" (get $spec "Error") | toString -}}
{{- if contains "Go value" $error -}}
{{- fail "chaos.experiment.text: is a list or a single value, expected a mapping; give an experiment file that tocsin chaos lint FILE takes" -}}
{{- end -}}
{{- if $error -}}
{{- fail (printf "chaos.experiment.text: is not YAML (%s), expected an experiment; correct the syntax until tocsin chaos lint FILE takes it" $error) -}}
{{- end -}}
{{- $version := default "missing" $spec.apiVersion | toString -}}
{{- $kind := default "missing" $spec.kind | toString -}}
{{- if or (ne $version "chaos/v1") (ne $kind "Experiment") -}}
{{- fail (printf "chaos.experiment.text: apiVersion is %s and kind is %s, expected chaos/v1 and Experiment; give an experiment file" $version $kind) -}}
{{- end -}}
{{- include "tocsin.chaos.shape" (dict "where" "" "found" $spec "known" ($.Files.Get "files/chaos/shape.yaml" | fromYaml)) -}}
{{- $kinds := list -}}
{{- range $fault := default list $spec.faults -}}
{{- $kinds = append $kinds (toString $fault.kind) -}}
{{- end -}}
{{- $limit := default "300s" (default dict $spec.safety).max_duration -}}
{{- $seconds := include "tocsin.chaos.seconds" $limit -}}
{{- if not $seconds -}}
{{- fail (printf "chaos.experiment.text: safety.max_duration is %v, expected a duration with its unit such as 5m; correct it" $limit) -}}
{{- end -}}
{{- dict "faults" ($kinds | uniq | sortAlpha) "maxDurationSeconds" (float64 $seconds) | toYaml -}}
{{- else -}}
{{- get ($.Files.Get "files/chaos/experiments.yaml" | fromYaml) .name | toYaml -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Names of the worker groups whose pods carry the target label, separated by commas. */}}
{{- define "tocsin.chaos.targetGroups" -}}
{{- $names := list -}}
{{- range $name, $group := .Values.workerGroups -}}
{{- $set := default dict $group -}}
{{- if ternary $set.chaosTarget $.Values.worker.chaosTarget (hasKey $set "chaosTarget") -}}
{{- $names = append $names $name -}}
{{- end -}}
{{- end -}}
{{- $names | sortAlpha | join "," -}}
{{- end -}}

{{/* "true" when the driver runs in the head's pod, whose account then needs the driver's rights. */}}
{{- define "tocsin.chaos.inHead" -}}
{{- if and .Values.chaos.enabled (has .Values.chaos.kind (list "rayjob" "raycronjob")) -}}true{{- end -}}
{{- end -}}

{{/* "true" when the driver may delete pods: armed, and the fault that does it is allowed. */}}
{{- define "tocsin.chaos.deletes" -}}
{{- with .Values.chaos -}}
{{- if and .enabled (not .dryRun) (has "pod.delete" .allowedFaults) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tocsin.chaos.url" -}}
http://{{ include "tocsin.service.head" . }}:8000
{{- end -}}

{{/* The file or the name that the command line gives to `tocsin chaos`. */}}
{{- define "tocsin.chaos.spec" -}}
{{- ternary "/etc/tocsin/chaos/experiment.yaml" .Values.chaos.experiment.name (ne .Values.chaos.experiment.text "") -}}
{{- end -}}

{{/* The words of the command line, as a YAML list. */}}
{{- define "tocsin.chaos.arguments" -}}
{{- $words := list "chaos" "run" (include "tocsin.chaos.spec" .) "--on" (include "tocsin.chaos.url" .) "--store" "/var/lib/tocsin/store" "--wait-s" (int .Values.chaos.driver.waitSeconds | toString) -}}
{{- $seed := int64 .Values.chaos.experiment.seed -}}
{{- if ge $seed 0 -}}
{{- $words = concat $words (list "--seed" (toString $seed)) -}}
{{- end -}}
{{- with .Values.chaos.publish.url -}}
{{- $words = concat $words (list "--publish" .) -}}
{{- end -}}
{{- append $words "--print-archive" | toYaml -}}
{{- end -}}

{{/* policy.yaml: what the program allows, whoever starts it. Parsed by tocsin.chaos.policy. */}}
{{- define "tocsin.chaos.policy" -}}
{{- $stop := .Values.chaos.stopOnAlert -}}
{{- with .Values.chaos -}}
{{- $policy := dict
      "enabled" .enabled
      "dry_run" .dryRun
      "namespace" $.Release.Namespace
      "release" $.Release.Name
      "protected_namespaces" .protectedNamespaces
      "namespace_label" .namespaceLabel
      "target_label" "tocsin.dev/chaos-target=true"
      "allowed_faults" .allowedFaults
      "max_concurrent_faults" (int .maxConcurrentFaults)
      "max_targets" (int .maxTargets)
      "max_duration_s" (int .maxDurationSeconds)
      "serve_url" (include "tocsin.chaos.url" $)
      "lease_name" (include "tocsin.configMap.chaos" $) -}}
{{- if $stop.enabled -}}
{{- $own := printf "namespace=\"%s\"" $.Release.Namespace -}}
{{- $_ := set $policy "stop_on_alert" $.Values.alertmanager.url -}}
{{- $_ := set $policy "stop_matchers" (prepend $stop.matchers $own) -}}
{{- end -}}
{{- toYaml $policy -}}
{{- end -}}
{{- if and .Values.chaos.enabled .Values.chaos.experiment.text }}
# SHA-256 of experiment.yaml beside it: {{ sha256sum .Values.chaos.experiment.text }}
{{- end -}}
{{- end -}}
