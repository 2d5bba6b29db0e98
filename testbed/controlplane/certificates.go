package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// policy keeps who asked for what, so that a test can hold a service to its rights.
const policy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: None
    userGroups: [system:masters, system:nodes]
  - level: None
    users: ["system:kube-controller-manager", "system:kube-scheduler", "system:apiserver"]
  - level: None
    userGroups: ["system:serviceaccounts:kube-system"]
  - level: Metadata
`

// authority signs what the components show each other.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// certify makes an authority, what the API server shows, and a kubeconfig for everyone who asks it.
func (f folder) certify() error {
	key, err := f.key("ca.key")
	if err != nil {
		return err
	}
	template := certificate(pkix.Name{CommonName: "controlplane"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	ca := authority{template, key}
	if ca.certificate, err = f.sign(ca, template, key, "ca.crt"); err != nil {
		return err
	}
	if err := f.serving(ca); err != nil {
		return err
	}
	if _, err := f.key("service-accounts.key"); err != nil {
		return err
	}
	for file, who := range map[string]pkix.Name{
		"kubeconfig":                         {CommonName: "admin", Organization: []string{"system:masters"}},
		"kube-controller-manager.kubeconfig": {CommonName: "system:kube-controller-manager"},
		"kube-scheduler.kubeconfig":          {CommonName: "system:kube-scheduler"},
	} {
		if err := f.kubeconfig(ca, file, who); err != nil {
			return err
		}
	}
	return os.WriteFile(f.file("audit.yaml"), []byte(policy), 0o600)
}

func (f folder) serving(ca authority) error {
	key, err := f.key("apiserver.key")
	if err != nil {
		return err
	}
	template := certificate(pkix.Name{CommonName: "kube-apiserver"})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)}
	_, err = f.sign(ca, template, key, "apiserver.crt")
	return err
}

func (f folder) kubeconfig(ca authority, file string, who pkix.Name) error {
	key, private, err := newKey()
	if err != nil {
		return err
	}
	template := certificate(who)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	signed, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, key.Public(), ca.key)
	if err != nil {
		return err
	}
	config := api.NewConfig()
	config.Clusters["controlplane"] = &api.Cluster{
		Server:                   address("https", f.ports.APIServer),
		CertificateAuthorityData: encode("CERTIFICATE", ca.certificate.Raw),
	}
	config.AuthInfos[who.CommonName] = &api.AuthInfo{
		ClientCertificateData: encode("CERTIFICATE", signed),
		ClientKeyData:         private,
	}
	config.Contexts["controlplane"] = &api.Context{Cluster: "controlplane", AuthInfo: who.CommonName}
	config.CurrentContext = "controlplane"
	return clientcmd.WriteToFile(*config, f.file(file))
}

func (f folder) key(file string) (crypto.Signer, error) {
	key, private, err := newKey()
	if err != nil {
		return nil, err
	}
	return key, os.WriteFile(f.file(file), private, 0o600)
}

// newKey makes a key, and its PEM: in a form that is taken for a public key as well, which the API server wants of that of
// ServiceAccounts.
func newKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	return key, encode("EC PRIVATE KEY", private), err
}

func (f folder) sign(ca authority, template *x509.Certificate, key crypto.Signer, file string) (*x509.Certificate, error) {
	signed, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, key.Public(), ca.key)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(f.file(file), encode("CERTIFICATE", signed), 0o600); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(signed)
}

func certificate(who pkix.Name) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // Never fails.
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      who,
		NotBefore:    time.Now().Add(-24 * time.Hour),
		NotAfter:     time.Now().Add(365 * 24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
