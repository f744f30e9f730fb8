package config

import (
	"fmt"
	"net/url"
	"reflect"
	"strings"
)

// fieldValues gives each variable's value as -check-config prints it. Secrets are redacted, and so are passwords inside URLs.
func fieldValues(cfg any) (map[string]string, error) {
	v := reflect.ValueOf(cfg)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("config must be a pointer to a struct, is %T", cfg)
	}
	out := map[string]string{}
	collect(v.Elem(), out)
	return out, nil
}

func collect(v reflect.Value, out map[string]string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() {
			continue
		}
		key, _, _ := strings.Cut(f.Tag.Get("env"), ",")
		if key == "" {
			if f.Type.Kind() == reflect.Struct {
				collect(v.Field(i), out)
			}
			continue
		}
		out[key] = RedactURL(fmt.Sprint(v.Field(i).Interface()))
	}
}

// RedactURL hides the password of a URL; any other text is returned as it is.
func RedactURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.User == nil {
		return s
	}
	if _, ok := u.User.Password(); ok {
		u.User = url.UserPassword(u.User.Username(), "redacted")
	}
	return u.String()
}
