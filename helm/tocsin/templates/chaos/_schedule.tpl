{{/* What the pattern of chaos.schedule cannot say: numbers in their range, ranges that go up, days that come. */}}

{{/* The number behind a value of a schedule such as 07, MON or jan; -1 for no value. Takes a dict: text, words. */}}
{{- define "tocsin.chaos.cronNumber" -}}
{{- if regexMatch "^[0-9]{1,2}$" .text -}}{{- atoi .text -}}{{- else -}}{{- get .words (upper .text) | default -1 -}}{{- end -}}
{{- end -}}

{{/*
What a schedule's part such as 1-5/2 names, as a YAML list of numbers; empty for what cron does not read. A
lone value with a step goes on to the end of its field. Takes a dict: part, low, high, words.
*/}}
{{- define "tocsin.chaos.cronPart" -}}
{{- $numbers := list -}}
{{- if regexMatch "^(\\*|[0-9A-Za-z]+(-[0-9A-Za-z]+)?)(/[1-9][0-9]?)?$" .part -}}
{{- $step := regexFind "/.*" .part | trimPrefix "/" | default "1" | atoi -}}
{{- $ends := regexFind "^[^/]*" .part | replace "*" (printf "%d-%d" (int .low) (int .high)) | splitList "-" -}}
{{- $from := include "tocsin.chaos.cronNumber" (dict "text" (first $ends) "words" .words) | atoi -}}
{{- $to := include "tocsin.chaos.cronNumber" (dict "text" (last $ends) "words" .words) | atoi -}}
{{- if and (ge $from (int .low)) (le $from $to) (le $to (int .high)) -}}
{{- if and (contains "/" .part) (eq (len $ends) 1) -}}{{- $to = int .high -}}{{- end -}}
{{- $numbers = untilStep $from (int (add1 $to)) $step -}}
{{- end -}}
{{- end -}}
{{- toYaml $numbers -}}
{{- end -}}

{{/* Takes the schedule: five fields, or a word such as @daily, of which nothing is to be asked. */}}
{{- define "tocsin.chaos.schedule" -}}
{{- $schedule := . -}}
{{- $texts := splitList " " . -}}
{{- if eq (len $texts) 5 -}}
{{- $months := dict "JAN" 1 "FEB" 2 "MAR" 3 "APR" 4 "MAY" 5 "JUN" 6 "JUL" 7 "AUG" 8 "SEP" 9 "OCT" 10 "NOV" 11 "DEC" 12 -}}
{{- /* 00 is Sunday, as a zero would be no value to `default`. */ -}}
{{- $weekdays := dict "SUN" "00" "MON" 1 "TUE" 2 "WED" 3 "THU" 4 "FRI" 5 "SAT" 6 -}}
{{- $fields := list
      (dict "name" "minute" "low" 0 "high" 59 "words" dict)
      (dict "name" "hour" "low" 0 "high" 23 "words" dict)
      (dict "name" "day of the month" "low" 1 "high" 31 "words" dict)
      (dict "name" "month" "low" 1 "high" 12 "words" $months)
      (dict "name" "day of the week" "low" 0 "high" 6 "words" $weekdays) -}}
{{- $named := dict -}}
{{- range $at, $field := $fields -}}
{{- range $part := splitList "," (index $texts $at) -}}
{{- $numbers := include "tocsin.chaos.cronPart" (merge (dict "part" $part) $field) | fromYamlArray -}}
{{- if not $numbers -}}
{{- fail (printf "chaos.schedule: %q, of which %q is no %s, expected %d to %d, a range that goes up, or *, and a step above 0; correct it" $schedule $part $field.name (int $field.low) (int $field.high)) -}}
{{- end -}}
{{- $_ := set $named $field.name (concat (default list (get $named $field.name)) $numbers) -}}
{{- end -}}
{{- end -}}
{{- /* Cron adds the days of the month and of the week up, unless one of the two says *. */ -}}
{{- if regexMatch "(^|,)\\*(/1)?(,|$)" (index $texts 4) -}}
{{- $comes := false -}}
{{- range $month := get $named "month" -}}
{{- $days := index (list 31 29 31 30 31 30 31 31 30 31 30 31) (int (sub $month 1)) -}}
{{- range $day := get $named "day of the month" -}}
{{- if le (int $day) $days -}}{{- $comes = true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $comes -}}
{{- fail (printf "chaos.schedule: %q never comes, expected a day that its months have; leave the schedule empty for runs by hand alone" $schedule) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
