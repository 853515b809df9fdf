"""The words that generated conversations are made of, in eleven languages."""

# ruff: noqa: SIM905 - a list of words reads best as a text

from __future__ import annotations

import random
from itertools import accumulate

_FUNCTION_WORDS = (
    "the of to a is and for in be or with that are as an not from by if this on will it was can your has have at which all we you "
    "our when there then more no do they any but also into only other each use one than its may after before been were would "
    "should their them please order about here what how where now out up so just some two over i my he she him her his who"
).split()
_ONSETS = "b br c ch cl cr d dr f fl fr g gl gr h j k l m n p pl pr qu r s sc sh sl sp st str t th tr v w".split()
_VOWELS = "a e i o u ai ea ee io ou".split()
_CODAS = "b ct d ft g l ld ll m n nd ng nt p pt r rd rm rn rt s sk ss st t v x".split()
_SUFFIXES = (
    "", "", "", "e", "s", "es", "ed", "ing", "er", "ers", "ation", "ations", "able", "ly", "ment", "ments", "ness", "ity", "ive",
    "al", "ally", "ful", "ous", "ize", "ized", "izing", "ization", "ies", "y", "ance", "ational", "fulness", "eed",
)  # fmt: skip
_WORDS = 9_000

OTHER_LANGUAGES = {
    "de": "der die das und ist nicht mit auf für von eine Bestellung Lieferung Rechnung wurde geprüft Größe Straße Kunde möchte morgen "
    "ändern Änderung bestätigt Betrag Übersicht Zahlung verfügbar Termin täglich können müssen über später Woche Anfrage Ergebnis",
    "fr": "le la les des une est pas avec pour dans commande livraison facture été vérifiée adresse client souhaite demain modifier "
    "confirmé montant aperçu paiement disponible rendez-vous où après semaine demande résultat français déjà reçu élevé très bientôt",
    "es": "el la los una es no con para en pedido entrega factura fue revisada dirección cliente quiere mañana cambiar confirmado "
    "importe resumen pago disponible cita después semana solicitud resultado también está número información habitación niño",
    "ru": "это не на для что заказ доставка счёт был проверен адрес клиент хочет завтра изменить подтверждено сумма обзор оплата "
    "доступно встреча после недели запрос результат также номер информация комната действие сообщение система",
    "ja": "注文 配送 請求書 確認 しました 住所 お客様 明日 変更 金額 支払い 利用可能 予約 来週 依頼 結果 番号 情報 部屋 メッセージ です ます から",
    "zh": "订单 配送 发票 已经 核对 地址 客户 希望 明天 修改 确认 金额 概览 付款 可用 预约 之后 星期 请求 结果 号码 信息 房间 消息 系统",
    "th": "คำสั่งซื้อ การจัดส่ง ใบแจ้งหนี้ ตรวจสอบ แล้ว ที่อยู่ ลูกค้า ต้องการ พรุ่งนี้ เปลี่ยน ยืนยัน จำนวนเงิน ชำระเงิน พร้อม นัดหมาย สัปดาห์",
    "ar": "الطلب التوصيل الفاتورة تم التحقق العنوان العميل يريد غدا تغيير مؤكد المبلغ نظرة الدفع متاح موعد بعد الأسبوع النتيجة",
    "hi": "आदेश वितरण चालान जाँच किया गया पता ग्राहक चाहता है कल बदलना पुष्टि राशि भुगतान उपलब्ध नियुक्ति सप्ताह अनुरोध परिणाम",
    "ko": "주문 배송 청구서 확인 했습니다 주소 고객 내일 변경 금액 결제 가능 예약 다음 주 요청 결과 번호 정보 방 메시지 시스템",
}
UNSPACED = frozenset({"ja", "zh", "th"})
FULL_STOPS = {"ja": "。", "zh": "。", "hi": "।"}


def _made_up(rng: random.Random) -> str:
    """Return a word that looks English and gives a stemmer something to do."""
    syllables = (rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((1, 1, 2))))
    return "".join(syllables) + rng.choice(_CODAS) + rng.choice(_SUFFIXES)


def _english() -> list[str]:
    """Return function words, then invented ones, the most frequent first."""
    rng = random.Random(1)
    known = dict.fromkeys(_FUNCTION_WORDS)
    while len(known) < _WORDS:
        known[_made_up(rng)] = None
    return list(known)


class Vocabulary:
    """Draws words as often as they occur in text: English by Zipf's law, the short lists of other languages evenly."""

    def __init__(self) -> None:
        self._english = _english()
        self._ranks = list(accumulate(1 / rank for rank in range(1, _WORDS + 1)))
        self._others = {language: words.split() for language, words in OTHER_LANGUAGES.items()}

    def draw(self, rng: random.Random, language: str) -> str:
        """Return a word of `language`; now and then a number, an identifier or an English word."""
        luck = rng.random()
        if luck < 0.02:
            return str(rng.randint(1, 99_999))
        if luck < 0.03:
            return f"{rng.randint(1, 999)}.{rng.randint(0, 99):02d}"
        if luck < 0.035:
            return f"{rng.getrandbits(24):06x}"
        if language == "en" or luck > 0.97:
            return rng.choices(self._english, cum_weights=self._ranks)[0]
        return rng.choice(self._others[language])
