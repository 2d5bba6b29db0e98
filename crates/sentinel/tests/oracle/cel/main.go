// Evaluates cases with cel-go, in the environment of today's sentinel: one JSON object a line in, one a line out.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/ext"
)

type param struct{ Name, Expr string }

type testCase struct {
	Params   []param
	Result   string
	Resource map[string]any
	Now      time.Time
}

// integers makes the generations what they are in a struct of the API.
func integers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			if f, ok := v[k].(float64); ok && (k == "generation" || k == "observed_generation") {
				v[k] = int64(f)
			} else {
				v[k] = integers(v[k])
			}
		}
	case []any:
		for i := range v {
			v[i] = integers(v[i])
		}
	}
	return v
}

func lookup(resource map[string]any) func(string) map[string]any {
	zero := func() map[string]any {
		return map[string]any{"status": "", "observed_generation": int64(0), "last_updated_time": "",
			"last_transition_time": "", "reason": "", "message": ""}
	}
	found := map[string]map[string]any{}
	status, _ := resource["status"].(map[string]any)
	conditions, _ := status["conditions"].([]any)
	for _, c := range conditions {
		c := c.(map[string]any)
		all := zero()
		all["last_updated_time"], all["last_transition_time"] = "0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"
		for k := range all {
			if v, ok := c[k]; ok {
				all[k] = v
			}
		}
		found[c["type"].(string)] = all
	}
	return func(name string) map[string]any {
		if c, ok := found[name]; ok {
			return c
		}
		return zero()
	}
}

func plain(v ref.Val) any {
	switch v := v.(type) {
	case types.Double:
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Sprint(f)
		}
		return float64(v)
	case types.Timestamp:
		return v.Time.UTC().Format(time.RFC3339Nano)
	case types.Duration:
		return int64(v.Duration)
	case types.Null:
		return nil
	case *types.Type:
		return v.TypeName()
	case traits.Mapper:
		out := map[string]any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			k := it.Next()
			out[fmt.Sprint(k.Value())] = plain(v.Get(k))
		}
		return out
	case traits.Lister:
		out := []any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			out = append(out, plain(it.Next()))
		}
		return out
	}
	return v.Value()
}

func run(c testCase) map[string]any {
	resource := integers(c.Resource).(map[string]any)
	condition := lookup(resource)
	options := []cel.EnvOption{
		ext.Strings(),
		cel.Variable("resource", cel.DynType),
		cel.Variable("now", cel.TimestampType),
		cel.Variable("reason", cel.StringType),
		cel.Function("condition", cel.Overload("condition_string", []*cel.Type{cel.StringType}, cel.DynType,
			cel.UnaryBinding(func(v ref.Val) ref.Val {
				return types.DefaultTypeAdapter.NativeToValue(condition(v.Value().(string)))
			}))),
	}
	for _, p := range c.Params {
		options = append(options, cel.Variable(p.Name, cel.DynType))
	}
	env, err := cel.NewEnv(options...)
	if err != nil {
		return map[string]any{"refused": err.Error()}
	}
	values := map[string]any{"resource": resource, "now": c.Now, "reason": "why"}
	var out ref.Val
	for _, p := range append(c.Params, param{"", c.Result}) {
		ast, issues := env.Compile(p.Expr)
		if issues.Err() != nil {
			return map[string]any{"refused": issues.Err().Error()}
		}
		program, err := env.Program(ast)
		if err != nil {
			return map[string]any{"refused": err.Error()}
		}
		if out, _, err = program.Eval(values); err != nil {
			return map[string]any{"failed": err.Error()}
		}
		values[p.Name] = out
	}
	return map[string]any{"value": plain(out)}
}

func main() {
	decoder := json.NewDecoder(bufio.NewReader(os.Stdin))
	encoder := json.NewEncoder(os.Stdout)
	for decoder.More() {
		var c testCase
		if err := decoder.Decode(&c); err != nil {
			panic(err)
		}
		if err := encoder.Encode(run(c)); err != nil {
			panic(err)
		}
	}
}
