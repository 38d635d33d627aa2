{{/* Kubernetes quantities as numbers, so that rules can compare them. */}}

{{/* Bytes of a size such as "512Mi", as a whole number. */}}
{{- define "tocsin.bytes" -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $unit := regexFind "[A-Za-z]*$" . -}}
{{- mulf (float64 (trimSuffix $unit .)) (get $units $unit) | int64 -}}
{{- end -}}

{{/* Thousandths of a core of a CPU amount such as "500m" or "2". */}}
{{- define "tocsin.millicores" -}}
{{- if hasSuffix "m" . -}}
{{- trimSuffix "m" . | int64 -}}
{{- else -}}
{{- addf (mulf (float64 .) 1000) 0.5 | int64 -}}
{{- end -}}
{{- end -}}

{{/* Cores that Ray counts for a container: its limit, else its request, rounded up. */}}
{{- define "tocsin.cores" -}}
{{- $milli := int64 (include "tocsin.millicores" (default .cpu .cpuLimit)) -}}
{{- div (add $milli 999) 1000 -}}
{{- end -}}
