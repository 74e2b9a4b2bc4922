{{/* Names, labels and what is made of several values. */}}

{{- define "turnkv.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "turnkv.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "turnkv.labels" -}}
{{ include "turnkv.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "turnkv.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The Service without an address that gives each member a name, which certificates can have. */}}
{{- define "turnkv.members" -}}
{{ include "turnkv.name" . }}-members
{{- end }}

{{/* The Secret with the members' certificate: an existing one, the chart's own, or none. */}}
{{- define "turnkv.tlsSecret" -}}
{{- if .Values.tls.insecure }}
{{- if or .Values.tls.secret .Values.tls.crt }}{{ fail "tls.insecure says that there are no certificates: leave tls.secret and tls.crt empty" }}{{ end }}
{{- else if .Values.tls.secret }}{{ .Values.tls.secret }}
{{- else if and .Values.tls.crt .Values.tls.key .Values.tls.ca }}{{ include "turnkv.name" . }}-tls
{{- else }}{{ fail "name a Secret in tls.secret, or give tls.crt, tls.key and tls.ca; without certificates, say tls.insecure=true" }}
{{- end }}
{{- end }}

{{/* The server's configuration, in which @NODE@, @ADDRESS@ and @MEMBER@ are what each node makes of them. */}}
{{- define "turnkv.config" -}}
listen = "unix:/run/turnkv/turnkv.sock"
socket_mode = "0660"
tcp = "@ADDRESS@:7411"
metrics = "@ADDRESS@:9464"

[dram]
bytes = "{{ .Values.dram.gib }}GiB"
huge_pages = {{ .Values.dram.hugePages }}
lock = {{ .Values.dram.lock }}

[keep]
without_server_ms = {{ .Values.keep.withoutServerMs | int64 }}

[nvme]
path = "/var/lib/turnkv"
bytes = {{ .Values.nvme.bytes | int64 }}

[limits]
drain_ms = {{ .Values.limits.drainMs | int64 }}

[tls]
{{- if include "turnkv.tlsSecret" . }}
cert = "/etc/turnkv-tls/tls.crt"
key = "/etc/turnkv-tls/tls.key"
client_ca = "/etc/turnkv-tls/ca.crt"
{{- else }}
insecure = true

[access]
plain = ["engine/*"{{ if .Values.cluster.etcd }}, "member"{{ end }}]
{{- end }}
{{- with .Values.cluster.etcd }}

[cluster]
name = {{ $.Values.cluster.name | quote }}
id = "@NODE@"
endpoint = "{{ if include "turnkv.tlsSecret" $ }}tls{{ else }}tcp{{ end }}://@MEMBER@:7411"
etcd = {{ toJson . }}
{{- if include "turnkv.tlsSecret" $ }}
ca = "/etc/turnkv-tls/ca.crt"
cert = "/etc/turnkv-tls/tls.crt"
key = "/etc/turnkv-tls/tls.key"
{{- end }}
{{- if $.Values.cluster.etcdSecret }}
etcd_ca = "/etc/turnkv-etcd/ca.crt"
etcd_cert = "/etc/turnkv-etcd/tls.crt"
etcd_key = "/etc/turnkv-etcd/tls.key"
{{- end }}
{{- end }}
{{- with .Values.archive.place }}

[archive]
place = {{ . | quote }}
{{- with $.Values.archive.endpoint }}
endpoint = {{ . | quote }}
{{- end }}
sessions = {{ $.Values.archive.sessions | quote }}
{{- end }}
{{- with .Values.extraConfig }}

{{ . }}
{{- end }}
{{- end }}
