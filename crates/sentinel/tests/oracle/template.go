// Renders cases with Go's own text/template: one JSON object a line in, one a line out.
package main

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"text/template"
)

// plain turns numbers into int64 where they are integers, else float64.
func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		f, _ := v.Float64()
		return f
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = plain(v[k])
		}
	}
	return v
}

func main() {
	in := bufio.NewReader(os.Stdin)
	decoder := json.NewDecoder(in)
	decoder.UseNumber()
	encoder := json.NewEncoder(os.Stdout)
	for decoder.More() {
		var c struct {
			Template string
			Data     any
		}
		if err := decoder.Decode(&c); err != nil {
			panic(err)
		}
		out := map[string]string{}
		t, err := template.New("t").Parse(c.Template)
		if err != nil {
			out["parse"] = err.Error()
		} else {
			var b strings.Builder
			if err := t.Execute(&b, plain(c.Data)); err != nil {
				out["exec"] = err.Error()
			} else {
				out["ok"] = b.String()
			}
		}
		if err := encoder.Encode(out); err != nil {
			panic(err)
		}
	}
}
