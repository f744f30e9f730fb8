package api

import (
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/strictjson"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// keyLimits are a key's own limits. An absent one is unlimited for a key that a user owns, else its tier's. (shards belong to who pays.)
type keyLimits struct {
	RPMLimit        *int64              `json:"rpm_limit"`
	TPMLimit        *int64              `json:"tpm_limit"`
	TPDLimit        *int64              `json:"tpd_limit"`
	ConcurrentLimit *int64              `json:"concurrent_limit"`
	AllowedModels   *[]string           `json:"allowed_models"`
	MaxContext      *int64              `json:"max_context"`
	Limits          *[]tier.Limit       `json:"limits"`
	ModelLimits     *[]tier.ModelLimits `json:"model_limits"`
}

func (l keyLimits) own() tier.Overrides {
	return tier.Overrides{RPMLimit: l.RPMLimit, TPMLimit: l.TPMLimit, TPDLimit: l.TPDLimit, ConcurrentLimit: l.ConcurrentLimit, AllowedModels: l.AllowedModels,
		MaxContext: l.MaxContext, Limits: l.Limits, ModelLimits: l.ModelLimits}
}

// keyQuotaBody is the body of PUT key quota.
type keyQuotaBody struct {
	keyLimits
	Tier      *string `json:"tier"` // of a key that an org owns
	Suspended *bool   `json:"suspended"`
	Reason    string  `json:"reason"`
}

// newKeyBody is the body of POST key: who owns it, and the fields of its quota.
type newKeyBody struct {
	keyLimits
	UserID    string  `json:"user_id"`
	OrgID     string  `json:"org_id"`
	Name      string  `json:"name"`
	Tier      *string `json:"tier"`
	Suspended bool    `json:"suspended"`
	Reason    string  `json:"reason"`
}

func (b newKeyBody) key(id string, secret pgquota.Secret, actor string) pgquota.NewKey {
	return pgquota.NewKey{ID: id, UserID: b.UserID, OrgID: b.OrgID, Name: b.Name, Secret: secret, Tier: b.Tier, Suspended: b.Suspended, Actor: actor, Reason: b.Reason,
		Own: b.own()}
}

// keyView is a key as the API shows it. The secret is there once, in the answer that made it.
type keyView struct {
	ID          string      `json:"api_key_id"`
	UserID      string      `json:"user_id"`
	OrgID       string      `json:"org_id"`
	Name        string      `json:"name"`
	Prefix      string      `json:"prefix"`
	Rotations   int64       `json:"rotations"`
	Suspended   bool        `json:"suspended"`
	CreatedAt   usage.Time  `json:"created_at"`
	RotatedAt   *usage.Time `json:"rotated_at"`
	RevokedAt   *usage.Time `json:"revoked_at"`
	Version     int64       `json:"version"`
	UpdatedAt   usage.Time  `json:"updated_at"`
	Secret      string      `json:"secret,omitempty"`
	Propagation string      `json:"propagation,omitempty"`
}

func viewKey(k pgquota.ListedKey) keyView {
	return keyView{ID: k.ID, UserID: k.UserID, OrgID: k.OrgID, Name: k.Name, Prefix: k.Prefix, Rotations: k.Rotations, Suspended: k.Suspended,
		CreatedAt: usage.At(k.CreatedAt), RotatedAt: usage.AtOrNil(k.RotatedAt), RevokedAt: usage.AtOrNil(k.RevokedAt), Version: k.Version, UpdatedAt: usage.At(k.UpdatedAt)}
}

func listed(e pgquota.Entry) pgquota.ListedKey {
	return pgquota.ListedKey{Key: *e.Key, Suspended: e.Suspended, Version: e.Version, UpdatedAt: e.UpdatedAt}
}

// newSecret makes a secret: 130 random bits, of which people may see the first 30.
func newSecret() (string, pgquota.Secret) {
	secret := subject.SecretPrefix + rand.Text()
	return secret, pgquota.SecretOf(secret)
}

func (s *server) postKey(c echo.Context) error {
	var body newKeyBody
	once, wrong, err := readOnce(c)
	if err != nil {
		return err
	}
	if err := strictjson.Read(c.Request(), &body); err != nil {
		fields, other := split(err)
		if other != nil {
			return other
		}
		wrong = append(wrong, fields...)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	secret, kept := newSecret()
	key := body.key(id.String(), kept, actor(c))
	location := "/internal/api-keys/" + url.PathEscape(key.ID)
	key.Within, key.Once = within(c), onceKey(once, http.StatusCreated, location, secret)
	if wrong = merge(wrong, fieldErrors(key.Validate())); len(wrong) > 0 {
		return problem.Invalid(s.alsoUnknownTier(c.Request().Context(), body.Tier, wrong)...)
	}
	res, err := s.Store.CreateKey(c.Request().Context(), key)
	if done, err := s.replay(c, once, kindKey, err); done || err != nil {
		return err
	}
	c.Response().Header().Set("Location", location)
	return s.answerKey(c, http.StatusCreated, res, secret)
}

// onceKey keeps the answer of a call that makes a secret.
func onceKey(o *once, status int, location, secret string) *pgquota.Once[pgquota.QuotaResult] {
	return askOnce(o, func(res pgquota.QuotaResult) (kept, any) {
		v := viewKey(listed(res.Entry))
		v.Secret = secret
		return kept{Status: status, ETag: etag(res.Version), Location: location, Names: res.Names}, v
	})
}

func (s *server) answerKey(c echo.Context, status int, res pgquota.QuotaResult, secret string) error {
	v := viewKey(listed(res.Entry))
	v.Secret, v.Propagation = secret, s.settle(c.Request().Context(), kindKey, res.Changed, res.Fences)
	c.Response().Header().Set("ETag", etag(res.Version))
	return c.JSON(status, v)
}

// keyEntry reads the key that the path names.
func (s *server) keyEntry(c echo.Context) (pgquota.Entry, error) {
	id, err := pathID(c, "key_id")
	if err != nil {
		return pgquota.Entry{}, err
	}
	if wrong := checkID("key_id", id); wrong != nil {
		return pgquota.Entry{}, problem.Invalid(wrong...)
	}
	e, err := s.Store.Entry(c.Request().Context(), subject.Subject{Kind: subject.APIKey, ID: id})
	switch {
	case err != nil:
		return pgquota.Entry{}, err
	case e.Key == nil && within(c) != "":
		return pgquota.Entry{}, pgquota.ErrOutside
	case e.Key == nil:
		return pgquota.Entry{}, pgquota.ErrKeyMissing
	case within(c) != "" && e.Key.UserID != "":
		_, err = s.userEntry(c, e.Key.UserID)
	default:
		err = inOrg(c, e.Key.OrgID)
	}
	return e, err
}

func (s *server) getKey(c echo.Context) error {
	e, err := s.keyEntry(c)
	if err != nil {
		return err
	}
	c.Response().Header().Set("ETag", etag(e.Version))
	if notModified(c.Request().Header, e.Version) {
		return c.NoContent(http.StatusNotModified)
	}
	return c.JSON(http.StatusOK, viewKey(listed(e)))
}

// keyQuotaView is a key's quota as the API shows it.
type keyQuotaView struct {
	ID string `json:"api_key_id"`
	pgquota.View
	Propagation string `json:"propagation,omitempty"`
}

func (s *server) getKeyQuota(c echo.Context) error {
	e, err := s.keyEntry(c)
	if err != nil {
		return err
	}
	at, wrong := readAt(c)
	if wrong != nil {
		return problem.Invalid(wrong...)
	}
	if at != nil {
		if e.Key.UserID != "" { // whose org may have been another
			user, err := s.Store.EntryAt(c.Request().Context(), subject.Subject{Kind: subject.User, ID: e.Key.UserID}, *at)
			if err == nil {
				err = inOrg(c, user.OrgID)
			}
			if err != nil {
				return err
			}
		}
		if e, err = s.Store.EntryAt(c.Request().Context(), e.Subject, *at); err != nil {
			return err
		}
	}
	c.Response().Header().Set("ETag", etag(e.Version)) // no 304, as for users: the tier may have changed
	return c.JSON(http.StatusOK, keyQuotaView{ID: e.Key.ID, View: e.View()})
}

func (s *server) putKeyQuota(c echo.Context) error {
	e, err := s.keyEntry(c)
	if err != nil {
		return err
	}
	ctx, r := c.Request().Context(), c.Request()
	cond, wrong := precondition(r.Header)
	var body keyQuotaBody
	if err := strictjson.Read(r, &body); err != nil {
		fields, other := split(err)
		if other != nil {
			return other
		}
		wrong = append(wrong, fields...)
	}
	change := pgquota.Change{Subject: e.Subject, Tier: body.Tier, Suspended: body.Suspended, Own: body.own(), If: cond, Within: within(c), Actor: actor(c), Reason: body.Reason}
	if wrong = merge(wrong, fieldErrors(errors.Join(change.Validate(), change.OfKey(*e.Key)))); len(wrong) > 0 {
		return problem.Invalid(s.alsoUnknownTier(ctx, body.Tier, wrong)...)
	}
	res, err := s.Store.PutQuota(ctx, change)
	if err != nil {
		return err
	}
	c.Response().Header().Set("ETag", etag(res.Version))
	return c.JSON(http.StatusOK, keyQuotaView{e.Key.ID, res.View(), s.settle(ctx, kindKey, res.Changed, res.Fences)})
}

// keyChange reads what a rotation or a revocation asks for. Neither needs a body.
func (s *server) keyChange(c echo.Context, also ...problem.FieldError) (pgquota.KeyChange, error) {
	e, err := s.keyEntry(c)
	if err != nil {
		return pgquota.KeyChange{}, err
	}
	r := c.Request()
	cond, wrong := precondition(r.Header)
	wrong = append(also, wrong...)
	var body struct {
		Reason string `json:"reason"`
	}
	if r.ContentLength != 0 {
		if err := strictjson.Read(r, &body); err != nil {
			fields, other := split(err)
			if other != nil {
				return pgquota.KeyChange{}, other
			}
			wrong = append(wrong, fields...)
		}
	}
	change := pgquota.KeyChange{ID: e.Key.ID, If: cond, Within: within(c), Actor: actor(c), Reason: body.Reason}
	if wrong = merge(wrong, fieldErrors(change.Validate())); len(wrong) > 0 {
		return change, problem.Invalid(wrong...)
	}
	return change, nil
}

func (s *server) rotateKey(c echo.Context) error {
	once, wrong, err := readOnce(c)
	if err != nil {
		return err
	}
	change, err := s.keyChange(c, wrong...)
	if err != nil {
		return err
	}
	secret, kept := newSecret()
	change.Once = onceKey(once, http.StatusOK, "", secret)
	res, err := s.Store.RotateKey(c.Request().Context(), change, kept)
	if done, err := s.replay(c, once, kindKey, err); done || err != nil {
		return err
	}
	return s.answerKey(c, http.StatusOK, res, secret)
}

func (s *server) deleteKey(c echo.Context) error {
	change, err := s.keyChange(c)
	if err != nil {
		return err
	}
	res, err := s.Store.RevokeKey(c.Request().Context(), change)
	if err != nil {
		return err
	}
	return s.answerKey(c, http.StatusOK, res, "")
}

func (s *server) listKeys(c echo.Context) error {
	var f pgquota.KeyFilter
	p, wrong := readPage(c, params{"user_id": takeID(&f.UserID), "org_id": takeID(&f.OrgID)})
	if len(wrong) > 0 {
		return problem.Invalid(wrong...)
	}
	if f.OrgID != "" {
		if err := inOrg(c, f.OrgID); err != nil {
			return err
		}
	}
	f.Within, f.After, f.Limit = string(within(c)), p.after, p.limit+1
	keys, err := s.Store.Keys(c.Request().Context(), f)
	if err != nil {
		return err
	}
	var answer struct {
		Keys []keyView `json:"api_keys"`
		Next string    `json:"next_cursor"` // "": this is the last page
	}
	answer.Keys, answer.Next = fill(p, keys, viewKey, func(k pgquota.ListedKey) string { return k.ID })
	return c.JSON(http.StatusOK, answer)
}
